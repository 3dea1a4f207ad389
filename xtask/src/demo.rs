//! The story of answers that were lost, told with real processes on real files. Every claim is checked.

use crate::{Result, root};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

pub fn run(counterfoil: &Path) -> Result<()> {
    let folder = env::temp_dir().join(format!("counterfoil-demo-{}", process::id()));
    fs::create_dir_all(&folder)?;
    let demo = Demo { counterfoil: counterfoil.to_owned(), database: folder.join("demo.db") };
    println!("The database is {}\n", demo.database.display());

    println!("1. A note is created; the process is killed after the commit and before the answer.");
    let note = json!({ "idempotency_key": "note-1", "body": "Buy milk" });
    demo.lose_the_answer(&note)?;
    claim("one note is there, and nobody was told", demo.sql("SELECT count(*) FROM notes")? == "1")?;
    let retry = demo.call("ada@acme", "write-notes", "create_note", &note)?;
    claim("the retry succeeds, marked as a replay", retry.exit == 0 && retry.is_replay())?;
    claim("it answers that note's id", retry.reply["note_id"] == demo.sql("SELECT note_id FROM notes")?.as_str())?;
    claim("there is still one note", demo.sql("SELECT count(*) FROM notes")? == "1")?;

    println!("\n2. Eight processes race with one key.");
    let raced = json!({ "idempotency_key": "note-2", "body": "Call Bo" });
    let racers: Vec<Child> =
        (0..8).map(|_| demo.start("ada@acme", "write-notes", "create_note", &raced)).collect::<Result<_>>()?;
    let answers: Vec<Answer> = racers.into_iter().map(finish).collect::<Result<_>>()?;
    let fresh = answers.iter().filter(|answer| answer.exit == 0 && answer.reply["replayed"] == false).count();
    let replays = answers.iter().filter(|answer| answer.exit == 0 && answer.is_replay()).count();
    claim("one is fresh, seven are replays", (fresh, replays) == (1, 7))?;
    claim("all answer one note", answers.iter().all(|answer| answer.reply["note_id"] == answers[0].reply["note_id"]))?;
    claim("it was made once", demo.sql("SELECT count(*) FROM notes WHERE body = 'Call Bo'")? == "1")?;

    println!("\n3. The same key with another body.");
    let other = json!({ "idempotency_key": "note-1", "body": "Buy bread" });
    let refused = demo.call("ada@acme", "write-notes", "create_note", &other)?;
    claim("it is refused as key_conflict", refused.exit == 3 && refused.reply["code"] == "key_conflict")?;
    claim("nothing was written", demo.sql("SELECT count(*) FROM notes WHERE body = 'Buy bread'")? == "0")?;

    println!("\n4. Two edits of an automation, then a retry of the first.");
    let automations = |tool, arguments: &Value| demo.call("ada@acme", "write-automations", tool, arguments);
    let created = automations("create_automation", &json!({ "idempotency_key": "auto-1", "interval_minutes": 60 }))?;
    let id = &created.reply["automation_id"];
    let edit = |key: &str, version: u32, minutes: u32| {
        json!({
            "idempotency_key": key, "automation_id": id,
            "expected_version": version, "interval_minutes": minutes,
        })
    };
    let first = automations("set_interval", &edit("edit-1", 1, 30))?;
    let second = automations("set_interval", &edit("edit-2", 2, 15))?;
    claim("they make versions 2 and 3", first.reply["version"] == 2 && second.reply["version"] == 3)?;
    let again = automations("set_interval", &edit("edit-1", 1, 30))?;
    claim("the retry answers version 2, as a replay", again.is_replay() && again.reply["version"] == 2)?;
    let row = demo.sql("SELECT version, interval_minutes FROM automations")?;
    claim("the row stays at version 3, every 15 minutes", row == "3|15")?;

    println!("\n5. Another principal uses an equal key.");
    let theirs = demo.call("bo@acme", "write-notes", "create_note", &note)?;
    let is_own = theirs.reply["replayed"] == false && theirs.reply["note_id"] != retry.reply["note_id"];
    claim("the key is their own: another note", theirs.exit == 0 && is_own)?;

    println!("\n6. The permission is revoked.");
    let denied = demo.call("ada@acme", "read", "create_note", &note)?;
    claim("even the stored receipt is refused, as denied", denied.exit == 3 && denied.reply["code"] == "denied")?;

    println!("\n7. A deployment, outside the database: the provider takes it, and its answer is lost.");
    deployment(&demo, &folder.join("provider.db"))?;

    println!("\n8. The rows, as sqlite3 shows them: the notes, and one receipt to every effect.");
    println!("{}\n", demo.sql("SELECT note_id, workspace, body FROM notes")?);
    println!("{}", demo.sql("SELECT subject, tool, idempotency_key, resource_id FROM receipts")?);
    let verify = demo.counterfoil(&["verify"]).output()?;
    claim("counterfoil verify finds nothing wrong", verify.status.success() && verify.stdout == b"ok\n")?;

    println!("\nAll of it held. The folder may be deleted. Or try a call yourself:\n");
    println!(
        "  {} --db {} --as ada@acme --allow write-notes,read \\\n    \
         call create_note '{{\"idempotency_key\":\"mine-1\",\"body\":\"hello\"}}'",
        demo.counterfoil.display(),
        demo.database.display()
    );
    Ok(())
}

fn claim(what: &str, holds: bool) -> Result<()> {
    if !holds {
        return Err(format!("this did not hold: {what}").into());
    }
    println!("   ok: {what}");
    Ok(())
}

/// What the provider keeps to, and the worker relies on.
const CONTRACT: &str = "deduplicates-for=1h,looks-up,absent-is-final-after=10s,clock-within=1s";

fn deployment(demo: &Demo, store: &Path) -> Result<()> {
    let arguments = json!({ "idempotency_key": "deploy-1", "service": "web", "revision": "r1" });
    let started = demo.call("ada@acme", "deploy", "start_deployment", &arguments)?;
    claim("it is accepted: nothing is sent yet", started.exit == 0 && started.reply["state"] == "accepted")?;
    let asked = json!({ "operation_id": started.reply["operation_id"] });
    let state = || demo.call("ada@acme", "read", "get_operation", &asked);

    {
        let provider = Provider::start(demo, store, "drop-after")?;
        demo.work(&provider)?;
    }
    let lost = state()?.reply;
    claim("the worker knows only that it may have been taken", lost["state"] == "running" && lost["attempts"] == 1)?;
    let provider = Provider::start(demo, store, "none")?;
    let deadline = Instant::now() + Duration::from_secs(60);
    let ended = loop {
        demo.work(&provider)?;
        let answer = state()?.reply;
        if answer["state"] != "running" || Instant::now() > deadline {
            break answer;
        }
        thread::sleep(Duration::from_millis(50));
    };
    claim("it is sent again under the same key, and has succeeded", ended["state"] == "succeeded")?;
    claim("the provider made it once", sql(store, "SELECT count(*) FROM deployments")? == "1")?;
    let again = demo.call("ada@acme", "deploy", "start_deployment", &arguments)?;
    let same = again.reply["operation_id"] == started.reply["operation_id"];
    claim("the agent's retry is a replay, and starts nothing", again.is_replay() && same)
}

/// A provider that misbehaves, until this is dropped.
struct Provider {
    process: Child,
    url: String,
}

impl Provider {
    fn start(demo: &Demo, store: &Path, faults: &str) -> Result<Provider> {
        let mut command = Command::new(&demo.counterfoil);
        command.args(["provider", "--contract", CONTRACT, "--faults", faults, "--store"]).arg(store);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        let mut line = String::new();
        if let Some(stdout) = &mut process.stdout {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let url = line.trim().strip_prefix("listening on ").ok_or("the provider did not start")?.to_owned();
        Ok(Provider { process, url })
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

struct Demo {
    counterfoil: PathBuf,
    database: PathBuf,
}

struct Answer {
    exit: i32,
    reply: Value,
}

impl Answer {
    fn is_replay(&self) -> bool {
        self.reply["replayed"] == true
    }
}

impl Demo {
    fn counterfoil(&self, arguments: &[&str]) -> Command {
        let mut counterfoil = Command::new(&self.counterfoil);
        counterfoil.arg("--db").arg(&self.database).args(arguments);
        counterfoil
    }

    fn start(&self, who: &str, allow: &str, tool: &str, arguments: &Value) -> Result<Child> {
        let mut call = self.counterfoil(&["--as", who, "--allow", allow, "call", tool, &arguments.to_string()]);
        Ok(call.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?)
    }

    fn call(&self, who: &str, allow: &str, tool: &str, arguments: &Value) -> Result<Answer> {
        finish(self.start(who, allow, tool, arguments)?)
    }

    /// The answer goes to a socket that has no room left, so the process stops where it would give it. Once the commit
    /// is seen in the file, the process is killed.
    fn lose_the_answer(&self, note: &Value) -> Result<()> {
        let (mut full, _unread) = UnixStream::pair()?;
        full.set_nonblocking(true)?;
        loop {
            match full.write(&[0]) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        full.set_nonblocking(false)?;
        let mut call =
            self.counterfoil(&["--as", "ada@acme", "--allow", "write-notes", "call", "create_note", &note.to_string()]);
        let mut process = call.stdout(OwnedFd::from(full)).spawn()?;
        let deadline = Instant::now() + Duration::from_secs(60);
        while self.sql("SELECT count(*) FROM notes").unwrap_or_default() != "1" {
            if Instant::now() > deadline || process.try_wait()?.is_some() {
                return Err("the note was not committed".into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        process.kill()?;
        claim("it was killed", process.wait()?.signal() == Some(9))
    }

    /// Does what is due.
    fn work(&self, provider: &Provider) -> Result<()> {
        let mut work = self.counterfoil(&["work", "--provider", &provider.url, "--contract", CONTRACT, "--once"]);
        let status = work.stderr(Stdio::null()).status()?;
        if status.success() { Ok(()) } else { Err(format!("the worker failed: {status}").into()) }
    }

    fn sql(&self, text: &str) -> Result<String> {
        sql(&self.database, text)
    }
}

fn sql(database: &Path, sql: &str) -> Result<String> {
    // The native sqlite3 program; where there is none, python3's SQLite in its place.
    let output = Command::new("sqlite3")
        .arg(database)
        .arg(sql)
        .output()
        .or_else(|_| Command::new("python3").arg(root().join("xtask/native.py")).arg(database).arg(sql).output())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}

fn finish(process: Child) -> Result<Answer> {
    let output = process.wait_with_output()?;
    let exit = output.status.code().ok_or("the process was killed")?;
    Ok(Answer { exit, reply: serde_json::from_slice(&output.stdout)? })
}
