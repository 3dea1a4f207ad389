//! Every work by 1, 8 and 64 callers, all contenders in turn in each round.

use crate::contenders::{Contender, Result, Running};
use crate::load::{self, Round};
use crate::report::{Aim, Report, Row, Spread, Target};
use crate::work::{Caller, Prepared, Work};
use crate::{Bench, Place};
use std::collections::BTreeMap;
use std::time::Duration;

/// The rounds of each work, number of callers and contender.
type Rounds = BTreeMap<(&'static str, usize, &'static str), Vec<Round>>;

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let measured = bench.places.iter().map(|place| Ok((place, measure(bench, place)?))).collect::<Result<Vec<_>>>()?;
    for (place, rounds) in &measured {
        for ((work, callers, contender), rounds) in rounds {
            let mut row = |unit, value| {
                let (work, place) = ((*work).to_owned(), place.kind.clone());
                report.rows.push(Row { work, place, callers: *callers, contender, unit, value });
            };
            row("calls/s", Spread::of(rates(rounds)));
            for (unit, percent) in [("µs, half", 50.0), ("µs, 99 %", 99.0)] {
                row(unit, Spread::of(rounds.iter().map(|round| micros(round.percentile(percent)))));
            }
            let failed: usize = rounds.iter().map(|round| round.failed).sum();
            if failed > 0 {
                row("calls without their answer", Spread::of([failed as f64]));
            }
        }
        targets(place, rounds, report);
    }
    Ok(())
}

fn measure(bench: &Bench, place: &Place) -> Result<Rounds> {
    let mut measured = Rounds::new();
    let folder = place.folder()?;
    let running = Running::all(folder.path(), || bench.host())?;
    let handle = bench.runtime.handle();
    let most = bench.callers.iter().copied().max().unwrap_or_default();
    let prepare = |running: &Running| handle.block_on(running.contender.prepare(most));
    let prepared = running.iter().map(prepare).collect::<Result<Vec<Prepared>>>()?;
    let mut versions: BTreeMap<_, u64> = BTreeMap::new();
    for &work in &bench.work {
        for &callers in &bench.callers {
            for round in 0..bench.rounds {
                // Whoever comes first in one comes last in another.
                for turn in 0..running.len() {
                    let index = (turn + round) % running.len();
                    let contender = &running[index].contender;
                    let caller = |number| {
                        let version = versions.get(&(index, number)).copied().unwrap_or(1);
                        Caller::new(work, number, &prepared[index], version)
                    };
                    let made = (0..callers).map(caller).collect();
                    let (round, made) = load::run(handle, contender, made, bench.time)?;
                    if work == Work::Edit {
                        versions
                            .extend(made.iter().enumerate().map(|(number, made)| ((index, number), made.version())));
                    }
                    measured.entry((work.name(), callers, contender.name())).or_default().push(round);
                }
            }
            bench.say(&format!("{}: {} by {callers}", place.kind, work.name()));
        }
    }
    Ok(measured)
}

fn rates(rounds: &[Round]) -> Vec<f64> {
    rounds.iter().map(|round| round.rate).collect()
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn targets(place: &Place, rounds: &Rounds, report: &mut Report) {
    let [component, native, persistent, plain] = Contender::NAMES;
    let of = |work, callers, contender| rounds.get(&(work, callers, contender)).map(|rounds| rates(rounds));
    let mut aim = |what: &str, aim, values: Option<Vec<f64>>, to: Option<Vec<f64>>| {
        let (Some(values), Some(to)) = (values, to) else { return };
        report.targets.push(Target::new(format!("{what}, {}", place.kind), aim, Spread::of_ratios(&values, &to)));
    };
    if place.is_disk {
        let (ours, theirs) = (of("new", 1, component), of("new", 1, persistent));
        aim("new, 1 caller: time against the persistent connection's", Aim::AtMost(1.15), theirs, ours);
        let (ours, theirs) = (of("new", 64, component), of("new", 64, plain));
        aim("new, 64 callers: throughput against the plain handler's", Aim::AtLeast(20.0), ours, theirs);
    } else {
        let (ours, theirs) = (of("new", 64, component), of("new", 64, native));
        aim("new, 64 callers: throughput against the native engine's", Aim::AtLeast(0.5), ours, theirs);
    }
    let (ours, theirs) = (of("replay", 64, component), of("replay", 64, plain));
    aim("replay, 64 callers: throughput against the plain handler's", Aim::AtLeast(8.0), ours, theirs);
    for work in ["new", "edit", "replay"] {
        let late = |callers, contender| {
            let rounds = rounds.get(&(work, callers, contender))?;
            Some(rounds.iter().map(|round| micros(round.percentile(99.0))).collect())
        };
        let what = format!("{work}, 99 % at 64 callers: time against the plain handler's at 8");
        aim(&what, Aim::AtMost(1.0), late(64, component), late(8, plain));
    }
}
