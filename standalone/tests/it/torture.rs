//! Real processes on real files, which are killed and stopped at random moments: nothing that was answered is lost, nothing
//! acts twice, and nobody waits longer than is documented. COUNTERFOIL_TORTURE_SECONDS says for how long, COUNTERFOIL_SEED
//! repeats a run's choices.

mod agent;
mod evidence;

use crate::plain::{self, COMPONENT, Deployment};
use agent::{Call, Log, Outcome, now, work};
use evidence::{Attempt, attempts, in_doubt, wrong_answers, wrong_files};
use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use std::{env, fs, thread};
use tempfile::tempdir;
use test_support::number;

const PROCESSES: usize = 3;
const THREADS: u64 = 2;
const AUTOMATIONS: usize = 2;
/// Longer than the longest lease: a third of the longest wait.
const STOP: Duration = Duration::from_secs(4);
/// How long a call waits for the lock at most, and as long again for a machine with other work.
const LONGEST_WAIT: u64 = 10_000 + 10_000;

const ORDER: &str = "TEST_TORTURE";

/// What [`Process::start`] starts: it works until its standard input is closed. By itself it does nothing.
#[test]
fn child() {
    let Ok(order) = env::var(ORDER) else { return };
    let [folder, log, number, seed, automations] = *order.split('\n').collect::<Vec<_>>() else { panic!("{order}") };
    let deployment = Deployment::new(Path::new(folder));
    let automations: Vec<_> = automations.split(' ').map(str::to_owned).collect();
    let (log, ends) = (Log::new(Path::new(log)), AtomicBool::new(false));
    let say = std::panic::take_hook();
    // The other thread would go on as if nothing had happened.
    std::panic::set_hook(Box::new(move |panic| {
        say(panic);
        std::process::exit(1);
    }));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let random = Rng::with_seed(seed.parse::<u64>().unwrap() + thread);
            let (deployment, automations, log, ends) = (&deployment, &automations, &log, &ends);
            scope.spawn(move || work(&format!("{number}-{thread}"), random, deployment, automations, log, ends));
        }
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        ends.store(true, Relaxed);
    });
}

struct Process {
    number: usize,
    child: Child,
    log: PathBuf,
    /// Since when it is stopped, and when it is to go on.
    stopped: Option<(u64, Instant)>,
}

/// What one process could do nothing about: from when to when.
struct Stop {
    process: usize,
    from: u64,
    to: u64,
}

impl Process {
    fn start(number: usize, seed: u64, folder: &Path, logs: &Path, automations: &[String]) -> Process {
        let log = logs.join(number.to_string());
        drop(Log::new(&log));
        let paths = [folder, &log].map(|path| path.to_str().unwrap().to_owned()).join("\n");
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", "torture::child", "--nocapture"]).env(COMPONENT, plain::file());
        child.env(ORDER, format!("{paths}\n{number}\n{seed}\n{}", automations.join(" ")));
        let child = child.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        Process { number, child, log, stopped: None }
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    fn attempts(&self) -> Vec<Attempt> {
        attempts(self.number, &self.log)
    }

    #[track_caller]
    fn assert_alive(&mut self) {
        assert_eq!(self.child.try_wait().unwrap(), None, "process {} ended by itself", self.number);
    }

    fn kill(&mut self) -> Option<Stop> {
        self.assert_alive();
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.stopped.take().map(|(from, _)| Stop { process: self.number, from, to: now() })
    }

    /// At once, whatever it is doing.
    fn stop(&mut self) {
        self.assert_alive();
        self.send(Signal::SIGSTOP);
    }

    /// Where it holds the lock, as far as can be told: the token then stays as it is.
    fn stop_holding(&mut self, folder: &Path, random: &mut Rng) {
        const TRIES: u32 = 30;
        for _ in 0..TRIES {
            self.stop();
            if is_stuck(folder) {
                return;
            }
            self.send(Signal::SIGCONT);
            thread::sleep(Duration::from_micros(random.u64(100..5_000)));
        }
        self.stop();
    }

    fn go_on_if_due(&mut self) -> Option<Stop> {
        let (from, _) = self.stopped.take_if(|(_, until)| *until <= Instant::now())?;
        self.send(Signal::SIGCONT);
        Some(Stop { process: self.number, from, to: now() })
    }

    /// Lets it answer the calls that it is making.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success(), "process {}", self.number);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Gone already, unless the test has failed.
        let _gone = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// What was done to the processes.
#[derive(Default)]
struct Done {
    kills: usize,
    stops: Vec<Stop>,
}

/// Kills and stops processes for a while. In half of the cases another agent repeats at once what is in doubt.
fn torture(time: Duration, seed: u64, folder: &Path, logs: &Path, automations: &[String]) -> Done {
    let (deployment, retries) = (Deployment::new(folder), Log::new(&logs.join("0")));
    let retry = |calls: Vec<Call>| calls.iter().for_each(|call| drop(retries.make(&deployment, call)));
    let mut random = Rng::with_seed(seed);
    let mut numbers = 1..;
    let mut start = |random: &mut Rng| {
        let (number, seed) = (numbers.next().unwrap(), random.u64(..u64::MAX / 2));
        Process::start(number, seed, folder, logs, automations)
    };
    let mut processes: Vec<_> = (0..PROCESSES).map(|_| start(&mut random)).collect();
    let mut done = Done::default();
    let begun = Instant::now();
    thread::scope(|scope| {
        loop {
            thread::sleep(Duration::from_millis(random.u64(1..300)));
            done.stops.extend(processes.iter_mut().filter_map(Process::go_on_if_due));
            let stopped = processes.iter().filter(|process| process.stopped.is_some()).count();
            if begun.elapsed() >= time {
                // One that went on after a stop comes to its end as well.
                if stopped == 0 {
                    break;
                }
                continue;
            }
            let process = random.choice(&mut processes).unwrap();
            let was_stopped = process.stopped.is_some();
            // Mostly one that holds the lock, and not while the lock is stuck: in the time of a lease nothing happens.
            let is_holder = random.u32(0..4) > 0;
            match (is_holder, was_stopped || is_stuck(folder)) {
                (true, true) => continue,
                (true, false) => process.stop_holding(folder, &mut random),
                (false, _) => process.stop(),
            }
            let doubts = process.attempts();
            if !was_stopped && stopped + 1 < PROCESSES && random.u32(0..3) > 0 {
                let longest = if random.bool() { STOP } else { STOP / 2 };
                process.stopped = Some((now(), Instant::now() + longest.mul_f64(0.85 + 0.15 * random.f64())));
            } else {
                done.stops.extend(process.kill());
                done.kills += 1;
                *process = start(&mut random);
            }
            if random.bool() {
                scope.spawn(move || retry(in_doubt(&doubts)));
            }
        }
        processes.into_iter().for_each(Process::end);
    });
    done
}

/// Those of all processes.
fn all_attempts(logs: &Path) -> Vec<Attempt> {
    let logs = fs::read_dir(logs).unwrap().map(|entry| entry.unwrap().path());
    logs.flat_map(|log| attempts(log.file_name().unwrap().to_str().unwrap().parse().unwrap(), &log)).collect()
}

/// The name of the file that is the lock, if it was not being renamed.
fn token(folder: &Path) -> Option<String> {
    let names = fs::read_dir(folder.join("counterfoil.db-lock")).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.find(|name| name.starts_with("held.") || name.starts_with("free."))
}

/// Whether whoever holds the lock gets on with nothing.
fn is_stuck(folder: &Path) -> bool {
    let before = token(folder);
    thread::sleep(Duration::from_millis(25));
    before.as_deref().is_some_and(|name| name.starts_with("held.")) && token(folder) == before
}

/// How often the lock was taken from somebody. The first who takes it takes it from nobody.
fn takeovers(folder: &Path) -> u32 {
    let token = token(folder).expect("a token");
    token.split('.').nth(2).unwrap().parse::<u64>().unwrap() as u32 - 1
}

/// How long each call took whose process was not stopped meanwhile, in milliseconds.
fn waits(attempts: &[Attempt], stops: &[Stop]) -> Vec<u64> {
    let waited = attempts.iter().filter_map(|attempt| {
        let (began, (ended, _)) = (attempt.began, attempt.end.as_ref()?);
        let was_stopped = |stop: &Stop| stop.process == attempt.process && stop.from <= *ended && began <= stop.to;
        (!stops.iter().any(was_stopped)).then_some(ended.saturating_sub(began))
    });
    waited.collect()
}

#[test]
fn processes_that_are_killed_and_stopped_lose_and_double_nothing() {
    let seed = number("COUNTERFOIL_SEED").unwrap_or_else(|| now() % 1_000_000);
    let time = Duration::from_secs(number("COUNTERFOIL_TORTURE_SECONDS").unwrap_or(10));
    eprintln!("torture for {time:?} with COUNTERFOIL_SEED={seed}");
    let (folder, logs) = (tempdir().unwrap(), tempdir().unwrap());
    let (folder, logs) = (folder.path(), logs.path());
    let (database, deployment) = (folder.join("counterfoil.db"), Deployment::new(folder));
    let automations: Vec<_> = (0..AUTOMATIONS)
        .map(|number| {
            let key = format!("automation-{number}");
            let made = deployment.call(|tools, store| tools.call_create_automation(store, &key, 60)).unwrap();
            made.automation.automation_id
        })
        .collect();

    let done = torture(time, seed, folder, logs, &automations);

    let attempts = all_attempts(logs);
    let mut wrong = wrong_answers(&attempts);
    wrong.extend(wrong_files(&database, &attempts, AUTOMATIONS));
    let count = |is: &dyn Fn(&Attempt) -> bool| attempts.iter().filter(|attempt| is(attempt)).count();
    let (fresh, replays) = (count(&|attempt| attempt.is(false)), count(&|attempt| attempt.is(true)));
    let mut refusals = BTreeMap::new();
    attempts.iter().filter_map(Attempt::code).for_each(|code| *refusals.entry(code).or_insert(0) += 1);
    let (doubts, taken_over) = (in_doubt(&attempts), takeovers(folder));
    let longest = waits(&attempts, &done.stops).into_iter().max().unwrap_or(0);
    eprintln!(
        "{fresh} calls acted and were answered, {replays} were replays; refused: {refusals:?}; {} kills, {} stops, \
         {taken_over} takeovers; {} unanswered, {} of them in doubt at the end; the longest wait was {longest} ms",
        done.kills,
        done.stops.len(),
        count(&|attempt| attempt.end.is_none()),
        doubts.len(),
    );
    assert!(wrong.is_empty(), "{} are wrong, among them: {:#?}", wrong.len(), &wrong[..5.min(wrong.len())]);
    assert!(longest <= LONGEST_WAIT, "{longest} ms");
    assert!(done.kills > 0 && !done.stops.is_empty() && taken_over > 0 && replays > 0, "too little happened");

    settle(&doubts, &deployment, logs);
    let attempts = all_attempts(logs);
    let mut wrong = wrong_answers(&attempts);
    wrong.extend(wrong_files(&database, &attempts, AUTOMATIONS));
    assert!(wrong.is_empty(), "once all is settled, {} are wrong: {:#?}", wrong.len(), &wrong[..5.min(wrong.len())]);
}

/// What nobody was answered is called again by one that is alone: it succeeds, unless it is an edit that never was.
fn settle(doubts: &[Call], deployment: &Deployment, logs: &Path) {
    let log = Log::new(&logs.join("1000000"));
    for call in doubts {
        match (&call.what, log.make(deployment, call)) {
            (_, Outcome::Done(..)) => {}
            (agent::What::Edit(..), Outcome::Refused(code, _)) if code == "VersionConflict" => {}
            (_, outcome) => panic!("{call:?} was answered {outcome:?}"),
        }
    }
}
