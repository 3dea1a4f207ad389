//! What a call costs the more receipts there are.

use crate::contenders::{NativeInstance, Result, Running, principal};
use crate::load::{self, Round};
use crate::matrix::micros;
use crate::report::{Aim, Report, Row, Spread, Target};
use crate::work::{Call, Caller, Prepared, Work};
use crate::{Bench, Place};
use counterfoil_server::owner::Instance;
use host_example::{Files, Invocation};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;
use uuid::Uuid;

const SIZES: [(&str, usize); 3] = [("1 k", 1_000), ("100 k", 100_000), ("1 M", 1_000_000)];
const CALLERS: [usize; 2] = [1, 64];
const WORKS: [Work; 2] = [Work::New, Work::Replay];

/// A database that was filled, and some of its keys.
struct Filled {
    name: &'static str,
    file: PathBuf,
    prepared: Prepared,
}

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    let Some(memory) = bench.places.iter().find(|place| !place.is_disk) else { return Ok(()) };
    let folder = memory.folder()?;
    let fill = |(name, size): (&'static str, usize)| {
        let file = folder.path().join(format!("{size}.db"));
        let prepared = fill(&file, size)?;
        bench.say(&format!("{name} receipts: {} bytes", crate::size(&file)?));
        Ok(Filled { name, file, prepared })
    };
    let filled = SIZES.into_iter().map(fill).collect::<Result<Vec<_>>>()?;
    bench.places.iter().try_for_each(|place| at(bench, place, &filled, report))
}

/// By the native engine, which is the fastest. Keys are random, as callers make them.
fn fill(file: &Path, size: usize) -> Result<Prepared> {
    let mut instance = NativeInstance::new(|_| Some(principal()), Files::sole(file, Duration::ZERO)?);
    let mut kept = Vec::new();
    let mut made = 0;
    while made < size {
        let calls: Vec<_> = (made..size.min(made + 64))
            .map(|number| {
                let key = Uuid::new_v4().to_string();
                let Call { tool, arguments } = crate::work::note(&key, "prepared");
                // At most 10,000 of them, from all over.
                if number % size.div_ceil(10_000) == 0 {
                    kept.push(key);
                }
                Invocation { tool: tool.to_owned(), arguments }
            })
            .collect();
        if let Some(refused) = instance.attempt(&calls, &[])?.iter().find(|reply| reply.refused) {
            return Err(format!("a note was refused: {}", refused.body).into());
        }
        made += calls.len();
    }
    drop(instance);
    Ok(Prepared { keys: kept.into(), automations: Vec::new().into() })
}

fn at(bench: &Bench, place: &Place, filled: &[Filled], report: &mut Report) -> Result<()> {
    let folder = place.folder()?;
    let start = |filled: &Filled| {
        let file = folder.path().join(filled.name);
        fs::copy(&filled.file, &file)?;
        // Else the first commit would wait for all of it.
        File::open(&file)?.sync_all()?;
        Running::component(bench.host()?, &file)
    };
    let running = filled.iter().map(start).collect::<Result<Vec<_>>>()?;
    for work in WORKS {
        for callers in CALLERS {
            let mut measured: Vec<Vec<Round>> = filled.iter().map(|_| Vec::new()).collect();
            for round in 0..bench.rounds {
                for turn in 0..running.len() {
                    let index = (turn + round) % running.len();
                    let made = (0..callers).map(|number| Caller::new(work, number, &filled[index].prepared, 1));
                    let contender = &running[index].contender;
                    let (round, _) = load::run(bench.runtime.handle(), contender, made.collect(), bench.time)?;
                    measured[index].push(round);
                }
            }
            let mean = |round: &Round| micros(round.took.iter().sum::<Duration>()) / round.took.len() as f64;
            let means: Vec<Vec<f64>> = measured.iter().map(|rounds| rounds.iter().map(mean).collect()).collect();
            for (filled, means) in filled.iter().zip(&means) {
                let work = format!("{}, {} receipts", work.name(), filled.name);
                let value = Spread::of(means.iter().copied());
                let (place, contender) = (place.kind.clone(), running[0].contender.name());
                report.rows.push(Row { work, place, callers, contender, unit: "µs, mean", value });
            }
            let plural = if callers == 1 { "" } else { "s" };
            let what = format!("{}, {callers} caller{plural}: 1 M receipts against 1 k, {}", work.name(), place.kind);
            let value = Spread::of_ratios(&means[2], &means[0]);
            report.targets.push(Target::new(what, Aim::AtMost(1.3), value));
            bench.say(&format!("{}: sizes, {} by {callers}", place.kind, work.name()));
        }
    }
    Ok(())
}
