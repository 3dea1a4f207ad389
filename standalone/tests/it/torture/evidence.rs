//! What the logs of all processes say and what the files hold, and whether the two agree.

use super::agent::{Call, Effect, Line, Outcome, What};
use rusqlite::{Connection, Row};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// A call as a log tells of it.
pub struct Attempt {
    pub process: usize,
    pub call: Call,
    pub began: u64,
    /// When it was answered, and what. None: the process was killed, or is not so far.
    pub end: Option<(u64, Outcome)>,
}

impl Attempt {
    fn effect(&self) -> Option<&Effect> {
        match &self.end {
            Some((_, Outcome::Done(effect, _))) => Some(effect),
            _ => None,
        }
    }

    pub fn code(&self) -> Option<&str> {
        match &self.end {
            Some((_, Outcome::Refused(code, _))) => Some(code),
            _ => None,
        }
    }

    /// Whether only another call with its key can tell what became of it.
    fn is_in_doubt(&self) -> bool {
        self.end.is_none() || self.code() == Some("Unconfirmed")
    }

    pub fn is(&self, replayed: bool) -> bool {
        matches!(self.end, Some((_, Outcome::Done(_, is))) if is == replayed)
    }
}

/// Those of one process so far. A line that was not written to its end was not written.
pub fn attempts(process: usize, log: &Path) -> Vec<Attempt> {
    let text = fs::read_to_string(log).unwrap();
    let mut attempts: BTreeMap<u64, Attempt> = BTreeMap::new();
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        match serde_json::from_str(line).unwrap() {
            Line::Begins { number, at, call } => {
                attempts.insert(number, Attempt { process, call, began: at, end: None });
            }
            Line::Ended { number, at, outcome } => attempts.get_mut(&number).unwrap().end = Some((at, outcome)),
        }
    }
    attempts.into_values().collect()
}

/// All attempts with one key.
fn by_key(attempts: &[Attempt]) -> BTreeMap<&str, Vec<&Attempt>> {
    let mut keys: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for attempt in attempts {
        keys.entry(attempt.call.key.as_str()).or_default().push(attempt);
    }
    keys
}

/// The calls of which nobody knows yet whether they have acted.
pub fn in_doubt(attempts: &[Attempt]) -> Vec<Call> {
    let keys = by_key(attempts).into_values();
    let unknown = keys.filter(|tries| tries.iter().all(|attempt| attempt.effect().is_none()));
    unknown.filter_map(|tries| Some(tries.iter().find(|attempt| attempt.is_in_doubt())?.call.clone())).collect()
}

const ALLOWED: [&str; 5] = ["Busy", "KeyConflict", "Unavailable", "Unconfirmed", "VersionConflict"];

/// What is wrong with the answers, whatever the files hold.
pub fn wrong_answers(attempts: &[Attempt]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (key, tries) in by_key(attempts) {
        let effects: Vec<_> = tries.iter().filter_map(|attempt| attempt.effect()).collect();
        if effects.iter().any(|effect| *effect != effects[0]) {
            wrong.push(format!("{key} was answered differently: {effects:?}"));
        }
        if tries.iter().filter(|attempt| attempt.is(false)).count() > 1 {
            wrong.push(format!("{key} acted more than once"));
        }
        let answered =
            |at| tries.iter().any(|attempt| matches!(attempt.end, Some((end, Outcome::Done(..))) if end < at));
        for Attempt { call, began, end, .. } in tries.iter().copied() {
            let Some((_, outcome)) = end else { continue };
            let is_right = match outcome {
                Outcome::Done(_, replayed) => !call.is_other && (*replayed || !answered(*began)),
                Outcome::Refused(code, _) => match code.as_str() {
                    "KeyConflict" => call.is_other,
                    // A version that has moved on does not come back.
                    "VersionConflict" => matches!(call.what, What::Edit(..)) && !call.is_other && effects.is_empty(),
                    code => ALLOWED.contains(&code),
                },
            };
            if !is_right {
                wrong.push(format!("{call:?} was answered {outcome:?}"));
            }
        }
    }
    wrong
}

/// What the files hold of one key: its receipt, and the effect of a note.
struct Kept {
    key: String,
    effect: Effect,
    body: Option<String>,
}

/// What is wrong with the files, once nobody uses them: SQLite itself reads them, and plays back the journal of one that
/// was killed. `others` is how many receipts there are beside those of these attempts.
pub fn wrong_files(database: &Path, attempts: &[Attempt], others: usize) -> Vec<String> {
    compare(database, attempts, others).unwrap_or_else(|error| vec![format!("the database cannot be read: {error}")])
}

fn compare(database: &Path, attempts: &[Attempt], others: usize) -> rusqlite::Result<Vec<String>> {
    let database = Connection::open(database)?;
    let mut wrong =
        rows(&database, "SELECT * FROM pragma_integrity_check WHERE integrity_check <> 'ok'", |row| row.get(0))?;
    let none = [
        "SELECT 'no receipt: ' || \"table\" FROM pragma_foreign_key_check",
        "SELECT 'no receipt: ' || note_id FROM notes WHERE operation_id NOT IN (SELECT operation_id FROM receipts)",
        "SELECT 'twice: ' || idempotency_key FROM receipts GROUP BY workspace, subject, idempotency_key HAVING count(*) > 1",
        "SELECT 'not one note: ' || idempotency_key FROM receipts WHERE tool = 'create_note'
         AND 1 <> (SELECT count(*) FROM notes WHERE (notes.operation_id, note_id) = (receipts.operation_id, resource_id))",
        "SELECT 'lost or doubled edits: ' || automation_id FROM automations WHERE version - 1 <>
         (SELECT count(*) FROM receipts WHERE tool = 'set_interval' AND resource_id = automation_id)",
    ];
    for sql in none {
        wrong.extend(rows(&database, sql, |row| row.get(0))?);
    }
    const KEPT: &str = "SELECT idempotency_key, receipts.operation_id, resource_id, body,
                          json_extract(result, '$.version')
                        FROM receipts LEFT JOIN notes USING (operation_id) WHERE tool <> 'create_automation'";
    let kept = rows(&database, KEPT, |row| {
        let effect = Effect { operation: row.get(1)?, resource: row.get(2)?, version: row.get(4)? };
        Ok(Kept { key: row.get(0)?, effect, body: row.get(3)? })
    })?;
    let receipts = rows(&database, "SELECT count(*) FROM receipts", |row| row.get::<_, i64>(0))?[0];
    if receipts != (kept.len() + others) as i64 {
        wrong.push(format!("{receipts} receipts, where {} and {others} are expected", kept.len()));
    }
    let mut kept: BTreeMap<String, Kept> = kept.into_iter().map(|kept| (kept.key.clone(), kept)).collect();
    for (key, tries) in by_key(attempts) {
        let answered = tries.iter().find_map(|attempt| attempt.effect());
        let has = |code| tries.iter().any(|attempt| attempt.code() == Some(code));
        match (answered, kept.remove(key)) {
            (Some(effect), None) => wrong.push(format!("{key} is lost: {effect:?}")),
            (Some(effect), Some(kept)) if *effect != kept.effect => {
                wrong.push(format!("{key} was answered {effect:?}, and is {:?}", kept.effect));
            }
            (None, Some(_)) if has("VersionConflict") || !tries.iter().any(|attempt| attempt.is_in_doubt()) => {
                wrong.push(format!("{key} was refused, and has acted"));
            }
            (_, Some(kept)) => {
                let first = Call { is_other: false, ..tries[0].call.clone() };
                if kept.body != first.body() {
                    wrong.push(format!("{key} has another body"));
                }
            }
            (None, None) => {}
        }
    }
    wrong.extend(kept.keys().map(|key| format!("{key} is nobody's")));
    Ok(wrong)
}

fn rows<T>(
    database: &Connection,
    sql: &str,
    row: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    database.prepare(sql)?.query_map([], row)?.collect()
}
