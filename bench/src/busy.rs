//! Replays while others write: what a retry costs in the busiest hour.

use crate::contenders::{Contender, Result, Running};
use crate::load::{self, Round};
use crate::matrix::micros;
use crate::report::{Aim, Report, Row, Spread, Target};
use crate::work::{Caller, Prepared, Work};
use crate::{Bench, Place};
use std::thread;

const REPLAYING: usize = 8;
const WRITING: usize = 4;

/// One round of one contender.
struct Told {
    quiet: Round,
    busy: Round,
    /// The writers' by themselves, each of whose calls takes a commit of as many as there are.
    writing: Round,
}

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    bench.places.iter().try_for_each(|place| at(bench, place, report))
}

fn at(bench: &Bench, place: &Place, report: &mut Report) -> Result<()> {
    let folder = place.folder()?;
    let running = Running::all(folder.path(), || bench.host())?;
    let handle = bench.runtime.handle();
    let prepare = |running: &Running| handle.block_on(running.contender.prepare(1));
    let prepared = running.iter().map(prepare).collect::<Result<Vec<Prepared>>>()?;
    let mut told: Vec<Vec<Told>> = running.iter().map(|_| Vec::new()).collect();
    for round in 0..bench.rounds {
        for turn in 0..running.len() {
            let index = (turn + round) % running.len();
            told[index].push(one(bench, &running[index].contender, &prepared[index])?);
        }
    }
    bench.say(&format!("{}: replay while others write", place.kind));
    for (running, told) in running.iter().zip(&told) {
        let mut row = |work: &str, unit, value: &dyn Fn(&Told) -> f64| {
            let (work, place) = (work.to_owned(), place.kind.clone());
            let value = Spread::of(told.iter().map(value));
            report.rows.push(Row { work, place, callers: REPLAYING, contender: running.contender.name(), unit, value });
        };
        row("replay, quiet", "µs, half", &|told| micros(told.quiet.percentile(50.0)));
        row("replay, quiet", "µs, 99 %", &|told| micros(told.quiet.percentile(99.0)));
        row("replay, 4 writing", "µs, half", &|told| micros(told.busy.percentile(50.0)));
        row("replay, 4 writing", "µs, 99 %", &|told| micros(told.busy.percentile(99.0)));
        row("replay, 4 writing", "calls without their answer", &|told| told.busy.failed as f64);
        row("4 writing alone", "µs, half", &|told| micros(told.writing.percentile(50.0)));
        row("4 writing alone", "µs, 99 %", &|told| micros(told.writing.percentile(99.0)));
    }
    let ours = &told[0];
    let refused = Spread::of(ours.iter().map(|told| told.busy.failed as f64));
    let what = format!("replay while 4 write: refused, {}", place.kind);
    report.targets.push(Target::new(what, Aim::AtMost(0.0), refused));
    let more = Spread::of(ours.iter().map(|told| {
        let more = micros(told.busy.percentile(99.0)) - micros(told.quiet.percentile(99.0));
        more / micros(told.writing.percentile(50.0))
    }));
    let what = format!("replay while 4 write: 99 % above the quiet 99 %, in commits, {}", place.kind);
    report.targets.push(Target::new(what, Aim::AtMost(1.0), more));
    Ok(())
}

fn one(bench: &Bench, contender: &Contender, prepared: &Prepared) -> Result<Told> {
    let run = |work, callers| {
        let callers = (0..callers).map(|number| Caller::new(work, number, prepared, 1)).collect();
        load::run(bench.runtime.handle(), contender, callers, bench.time).map(|(round, _)| round)
    };
    let quiet = run(Work::Replay, REPLAYING)?;
    let writing = run(Work::New, WRITING)?;
    let busy = thread::scope(|scope| {
        let writers = scope.spawn(|| run(Work::New, WRITING));
        let busy = run(Work::Replay, REPLAYING);
        writers.join().map_err(|_| "a writer panicked")?.and(busy)
    })?;
    Ok(Told { quiet, busy, writing })
}
