//! Where nothing is kept warm: an instance for each call, a process for each call; and what a server takes of memory.

use crate::contenders::{Contender, Plain, Result, principal};
use crate::matrix::micros;
use crate::report::{Aim, Report, Row, Spread, Target};
use crate::work::{Call, note};
use crate::{Bench, Place};
use host_example::Files;
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Answers a call.
type Handler<'a> = &'a dyn Fn(&Call) -> Result<String>;

/// How many of each are made in a round.
const MADE: usize = 20;
/// How many calls a server is given before its memory is looked at once more.
const CALLS: usize = 64 * 80;

pub fn run(bench: &Bench, report: &mut Report) -> Result<()> {
    for place in &bench.places {
        fresh_instances(bench, place, report)?;
        cold_processes(bench, place, report)?;
    }
    memory(bench, report)?;
    let megabytes = crate::size(&bench.component)? as f64 / 1e6;
    report.targets.push(Target::new("component, in megabytes", Aim::AtMost(1.5), Spread::of([megabytes])));
    bench.say("processes");
    Ok(())
}

/// As hosts do that show a component's exports to a model: for each call a new instance, sharing the file.
fn fresh_instances(bench: &Bench, place: &Place, report: &mut Report) -> Result<()> {
    let folder = place.folder()?;
    let host = bench.host()?;
    let ours = folder.path().join("component.db");
    let plain = Plain::create(&folder.path().join("plain.db"))?;
    let component = |call: &Call| {
        let mut instance = host.instance(|_| Some(principal()), Files::shared(&ours)?)?;
        Ok(instance.call_one(call.tool, &call.arguments)?.body)
    };
    let by_hand = |call: &Call| plain.call(call);
    let handlers: [(_, Handler<'_>); 2] = [(Contender::NAMES[0], &component), (Contender::NAMES[3], &by_hand)];
    for (work, call) in [("new, an instance each", None), ("replay, an instance each", Some(note("kept", "body")))] {
        let mut took: [Vec<f64>; 2] = Default::default();
        for _ in 0..bench.rounds {
            for ((_, handle), took) in handlers.iter().zip(&mut took) {
                let calls: Vec<_> = (0..MADE).map(|_| Call::note()).collect();
                if let Some(call) = &call {
                    handle(call)?;
                }
                let start = Instant::now();
                for made in &calls {
                    handle(call.as_ref().unwrap_or(made))?;
                }
                took.push(micros(start.elapsed()) / MADE as f64);
            }
        }
        for ((contender, _), took) in handlers.iter().zip(took) {
            let (work, place) = (work.to_owned(), place.kind.clone());
            let value = Spread::of(took);
            report.rows.push(Row { work, place, callers: 1, contender, unit: "µs, mean", value });
        }
    }
    Ok(())
}

fn cold_processes(bench: &Bench, place: &Place, report: &mut Report) -> Result<()> {
    let folder = place.folder()?;
    let one = || -> Result<f64> {
        let call = Call::note();
        let start = Instant::now();
        let answer = crate::output(program(bench, folder.path().join("cold.db").as_path()).args([
            "call",
            call.tool,
            &call.arguments,
        ]))?;
        let took = start.elapsed();
        if answer.contains(r#""status":"succeeded""#) { Ok(took.as_secs_f64() * 1e3) } else { Err(answer.into()) }
    };
    // The first compiles the component, and makes the database.
    one()?;
    let mut rounds = Vec::new();
    for _ in 0..bench.rounds {
        let mut took = (0..MADE).map(|_| one()).collect::<Result<Vec<_>>>()?;
        took.sort_by(f64::total_cmp);
        rounds.push(took[MADE / 2]);
    }
    let value = Spread::of(rounds);
    let (work, kind) = ("new, a process each".to_owned(), place.kind.clone());
    report.rows.push(Row { work, place: kind, callers: 1, contender: Contender::NAMES[0], unit: "ms, half", value });
    let what = format!("cold process to its answer, in milliseconds, {}", place.kind);
    report.targets.push(Target::new(what, Aim::AtMost(15.0), value));
    Ok(())
}

fn program(bench: &Bench, database: &std::path::Path) -> Command {
    let mut program = Command::new(&bench.program);
    program.arg("--component").arg(&bench.component).arg("--db").arg(database);
    program.args(["--as", "ada@acme", "--allow", "write-notes,read"]);
    program
}

/// Of the whole process, over stdio.
fn memory(bench: &Bench, report: &mut Report) -> Result<()> {
    let Some(place) = bench.places.iter().find(|place| !place.is_disk) else { return Ok(()) };
    let folder = place.folder()?;
    let mut server = program(bench, &folder.path().join("served.db"))
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let (Some(mut input), Some(output)) = (server.stdin.take(), server.stdout.take()) else {
        return Err("no pipes".into());
    };
    let mut answers = BufReader::new(output).lines();
    let mut answer = || -> Result<Value> { Ok(serde_json::from_str(&answers.next().ok_or("the server ended")??)?) };
    let version = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": { "name": "bench", "version": "1" } });
    writeln!(input, "{}", json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": version }))?;
    answer()?;
    writeln!(input, "{}", json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }))?;
    let request = |id: usize| {
        let Call { tool, arguments } = Call::note();
        let arguments: Value = serde_json::from_str(&arguments)?;
        let call = json!({ "name": tool, "arguments": arguments });
        Ok::<_, serde_json::Error>(json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": call }))
    };
    writeln!(input, "{}", request(1)?)?;
    answer()?;
    let idle = resident(server.id())?;
    let start = Instant::now();
    // 64 at a time.
    for batch in 0..CALLS / 64 {
        for number in 0..64 {
            writeln!(input, "{}", request(2 + batch * 64 + number)?)?;
        }
        for _ in 0..64 {
            let answer = answer()?;
            if answer["result"]["structuredContent"]["status"] != "succeeded" {
                return Err(answer.to_string().into());
            }
        }
    }
    let rate = CALLS as f64 / start.elapsed().as_secs_f64();
    let busy = resident(server.id())?;
    drop(input);
    server.wait()?;
    for (work, unit, value) in [
        ("a server after its first call", "MB resident", idle),
        (&*format!("a server after {CALLS} calls more"), "MB resident", busy),
        ("new, served over stdio", "calls/s", rate),
    ] {
        let (work, place) = (work.to_owned(), place.kind.clone());
        let callers = if unit == "calls/s" { 64 } else { 1 };
        let value = Spread::of([value]);
        report.rows.push(Row { work, place, callers, contender: Contender::NAMES[0], unit, value });
    }
    Ok(())
}

/// In megabytes.
fn resident(process: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024.0 / 1e6)
}
