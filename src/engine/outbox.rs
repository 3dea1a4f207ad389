//! Effects outside the database. The intent commits with its receipt; the host's worker claims what is due, talks to the
//! provider, and settles with what it saw. What follows from that is in [`next`](super::next); here it is kept.

use super::next::{Event, Moment, next};
use super::operation::{Contract, Operation, Seen, State, Step};
use super::operations::{self, Status};
use super::restoration;
use crate::Timestamp;
use crate::refusal::{Failure, Refusal};
use crate::settings;
use crate::storage::{Begun, Database, Snapshot, Transaction};
use crate::tool::Tool;
use backon::{BackoffBuilder, ExponentialBuilder};
use rusqlite::Connection;
use serde::Serialize;
use std::time::Duration;
use uuid::Uuid;

mod rows;

use rows::Row;

/// The most tasks that one claim hands out.
pub const MAX_CLAIM: u32 = 64;
/// The most operations that one claim looks at, since some of what is due ends without anything to do.
const MAX_LOOKED_AT: u32 = 1000;
/// How long a lease may be, in milliseconds.
pub const LEASE_MS: std::ops::RangeInclusive<u32> = 100..=600_000;
/// The most characters of what a worker saw that are kept.
pub const MAX_DETAIL: usize = 500;
/// The most characters of the id of a provider's resource.
pub const MAX_RESOURCE_ID: usize = 200;

/// The pause after the first fruitless attempt, in milliseconds. It doubles with each, up to the longest; as much again,
/// at random, is added.
const FIRST_PAUSE_MS: u64 = 500;
const LONGEST_PAUSE_MS: u64 = 60_000;
/// The pause between questions about an operation that a person was asked about.
const LONG_PAUSE_MS: u64 = 3_600_000;

/// Tells provider keys of this program from those of others.
const KEYS: Uuid = Uuid::from_u128(0x5d0e_6c1f_93a4_4b7e_8a52_7a3c_90e1_64bd);

/// One thing to do now.
pub(crate) struct Task {
    pub operation_id: String,
    pub attempt_id: String,
    pub step: Step,
    pub provider_key: String,
    pub request: String,
    pub lease_until: Timestamp,
    pub deadline: Timestamp,
}

pub(crate) struct Claimed {
    pub tasks: Vec<Task>,
    pub next_due: Option<Timestamp>,
}

/// What a worker saw, in its words and the provider's.
pub(crate) struct Observation {
    pub seen: Seen,
    pub text: String,
    pub resource_id: Option<String>,
}

/// Records an effect outside the database as what this call does: once it has committed, a worker sends `request`, under
/// one key in all attempts. To be called once in a tool's `act`.
///
/// # Errors
///
/// SQLite's, also if it is called twice; or `invalid_argument`, if `request` cannot be written as JSON.
pub fn intend(transaction: &Transaction<'_>, request: &impl Serialize) -> Result<(), Failure> {
    let request = serde_json::to_string(request)
        .map_err(|error| Refusal::invalid_argument(format!("The request cannot be written as JSON: {error}.")))?;
    let deadline = transaction.now().plus(settings::get()?.deadline_ms);
    transaction.execute(
        "INSERT INTO operations (operation_id, request, state, since, deadline, clock, due, planned_at)
         VALUES (?1, ?2, 'accepted', ?3, ?4, ?3, ?3, ?3)",
        (transaction.operation_id().to_string(), request, transaction.now(), deadline),
    )?;
    Ok(())
}

/// What is established of an operation that the tool `T` started, if there is nothing to ask for: it has ended, or was
/// asked to be cancelled before. None if it is to be cancelled.
///
/// # Errors
///
/// `not_found`, also if it is another workspace's or another tool's; `unconfirmed`, if a restored copy may lack it.
pub fn find_cancelled<T: Tool>(database: &Snapshot<'_>, operation_id: &str) -> Result<Option<Status>, Failure> {
    let open = database.query_row(
        "SELECT cancel = 'no' AND state IN ('accepted', 'running') FROM operations JOIN receipts USING (operation_id)
         WHERE operation_id = ?1 AND workspace = ?2 AND tool = ?3",
        (operation_id, database.workspace(), T::REVISION_OF),
        |row| row.get(0),
    )?;
    let Some(open) = open else {
        restoration::confirm_absence(database)?;
        return Err(Refusal::not_found(operations::NOT_FOUND).into());
    };
    match open {
        true => Ok(None),
        false => Ok(Some(operations::find(database, operation_id)?)),
    }
}

/// Asks for an operation to be cancelled, of which [`find_cancelled`] found nothing else.
///
/// # Errors
///
/// SQLite's.
pub fn cancel(transaction: &Transaction<'_>, operation_id: &str) -> Result<Status, Failure> {
    let connection = transaction.connection();
    let mut row = rows::load(connection, operation_id)?.ok_or(Refusal::not_found(operations::NOT_FOUND))?;
    row.known = next(&row.known, Event::Cancel, &row.contract.unwrap_or_default(), moment(&row, transaction.now()));
    if row.known.state == State::Cancelled {
        row.detail.clear();
    }
    rows::save(connection, &row, transaction.now())?;
    operations::find(transaction, operation_id)
}

/// Stores at most `limit` attempts at what is due, and hands them out for `lease` milliseconds.
pub(crate) fn claim(database: &Database, limit: u32, lease: u32, contract: Contract) -> Result<Claimed, Refusal> {
    if !(1..=MAX_CLAIM).contains(&limit) {
        return Err(Refusal::invalid_argument(format!("limit: {limit}, expected 1 to {MAX_CLAIM}.")));
    }
    if !LEASE_MS.contains(&lease) {
        let (least, most) = LEASE_MS.into_inner();
        return Err(Refusal::invalid_argument(format!("lease: {lease}, expected {least} to {most} milliseconds.")));
    }
    // Whoever only looks takes no lock.
    let now = Timestamp::now();
    let read = database.read()?;
    let is_due = rows::is_any_due(database.connection(), now)?;
    let next_due = rows::next_due(database.connection())?;
    drop(read);
    if !is_due {
        database.make_durable()?;
        return Ok(Claimed { tasks: Vec::new(), next_due });
    }
    let write = database.write()?;
    let connection = database.connection();
    let now = Timestamp::now();
    rows::plan_anew_if_the_clock_stepped_back(connection, now)?;
    let mut tasks = Vec::new();
    for _ in 0..MAX_LOOKED_AT {
        if tasks.len() == limit as usize {
            break;
        }
        let Some(mut row) = rows::load_due(connection, now)? else { break };
        tasks.extend(hand_out(connection, &mut row, u64::from(lease), contract, now)?);
    }
    let next_due = rows::next_due(connection)?;
    database.commit(write)?;
    Ok(Claimed { tasks, next_due })
}

fn hand_out(
    connection: &Connection,
    row: &mut Row,
    lease: u64,
    contract: Contract,
    now: Timestamp,
) -> Result<Option<Task>, Refusal> {
    // Kept, so that what is settled is judged by it as well.
    let contract = row.contract.map_or(contract, |kept| kept.weaker(contract));
    row.contract = Some(contract);
    let provider_key = row.provider_key.get_or_insert_with(|| provider_key(&row.operation_id)).clone();
    let moment = moment(row, now);
    let known = next(&row.known, Event::Claim { lease }, &contract, moment);
    if known.attempt.is_some_and(|attempt| attempt.step == Step::Submit) && restoration::is_marked(connection)? {
        // It may have been cancelled in the time that was lost, so nothing is sent before the copy is accepted.
        row.known.due = Some(now.plus(moment.pause));
        row.known.fruitless = row.known.fruitless.saturating_add(1);
        rows::save(connection, row, now)?;
        return Ok(None);
    }
    row.known = known;
    let task = row.known.attempt.map(|attempt| Task {
        operation_id: row.operation_id.clone(),
        attempt_id: Uuid::now_v7().to_string(),
        step: attempt.step,
        provider_key,
        request: row.request.clone(),
        lease_until: attempt.lease_until,
        deadline: row.known.deadline,
    });
    let was_lost = row.attempt_id.is_some();
    row.attempt_id = task.as_ref().map(|task| task.attempt_id.clone());
    match row.known.state {
        State::Failed => row.detail = not_done(&row.known, &row.detail),
        State::OutcomeUnknown if was_lost => row.detail = "The worker that had it in hand was lost.".to_owned(),
        State::Cancelled => row.detail.clear(),
        _ => {}
    }
    if let Some(task) = &task {
        rows::insert_attempt(connection, task, now)?;
    }
    rows::save(connection, row, now)?;
    Ok(task)
}

/// The same for every attempt at the operation, and for whoever derives it again.
fn provider_key(operation_id: &str) -> String {
    Uuid::new_v5(&KEYS, operation_id.as_bytes()).to_string()
}

/// Records what an attempt saw.
pub(crate) fn settle(database: &Database, attempt_id: &str, observation: &Observation) -> Result<Status, Refusal> {
    check_resource_id(observation.resource_id.as_deref())?;
    let write = database.write()?;
    let connection = database.connection();
    let now = Timestamp::now();
    let attempt = rows::load_attempt(connection, attempt_id)?.ok_or(Refusal::not_found("There is no such attempt."))?;
    let mut row = rows::load(connection, &attempt.operation_id)?.ok_or(Refusal::damaged())?;
    let in_hand = row.attempt_id.as_deref() == Some(attempt_id);
    let before = row.known;
    let event = Event::Settle { attempt: attempt.attempt, in_hand, seen: observation.seen };
    let contract = row.contract.unwrap_or_default();
    row.known = next(&before, event, &contract, moment(&row, now));
    let names_it = row.resource_id.is_none() && observation.resource_id.is_some() && !before.state.is_final();
    let unchanged = Operation { clock: before.clock, ..row.known } == before;
    if attempt.is_settled && unchanged && !names_it {
        return as_it_is(database, write, &row.operation_id);
    }
    if names_it {
        row.resource_id = observation.resource_id.clone();
    }
    if before.state != row.known.state || in_hand && !before.state.is_final() {
        row.detail = detail(&row.known, observation);
    }
    if row.known.attempt.is_none() {
        row.attempt_id = None;
    }
    rows::settle_attempt(connection, attempt_id, observation.seen, now)?;
    rows::save(connection, &row, now)?;
    let status = rows::status(connection, &row.operation_id)?;
    database.commit(write)?;
    Ok(status)
}

/// A person's finding on an operation in `outcome-unknown`.
pub(crate) fn resolve(
    database: &Database,
    operation_id: &str,
    happened: bool,
    resource_id: Option<String>,
) -> Result<Status, Refusal> {
    check_resource_id(resource_id.as_deref())?;
    let write = database.write()?;
    let connection = database.connection();
    let now = Timestamp::now();
    let Some(mut row) = rows::load(connection, operation_id)? else {
        if restoration::is_marked(connection)? {
            return Err(Refusal::lost_receipts());
        }
        return Err(Refusal::not_found("There is no operation of this id whose effect is outside the database."));
    };
    if row.known.state != State::OutcomeUnknown {
        let found = if happened { State::Succeeded } else { State::Failed };
        let status = as_it_is(database, write, operation_id)?;
        return if row.known.state == found {
            Ok(status)
        } else {
            Err(Refusal {
                next_action: "Read the operation: what became of it is known, or is being established.".into(),
                ..Refusal::version_conflict("The operation's outcome is not unknown.")
            })
        };
    }
    row.known = next(&row.known, Event::Resolve { happened }, &Contract::default(), moment(&row, now));
    row.attempt_id = None;
    row.resource_id = resource_id.or(row.resource_id);
    row.detail = if happened { String::new() } else { "A person found that it did not happen.".to_owned() };
    rows::save(connection, &row, now)?;
    let status = rows::status(connection, operation_id)?;
    database.commit(write)?;
    Ok(status)
}

/// The answer where there is nothing to record: what is read is made durable before it is told.
fn as_it_is(database: &Database, write: Begun<'_>, operation_id: &str) -> Result<Status, Refusal> {
    drop(write);
    let status = rows::status(database.connection(), operation_id)?;
    database.make_durable()?;
    Ok(status)
}

fn detail(known: &Operation, Observation { seen, text, .. }: &Observation) -> String {
    let text: String = text.chars().take(MAX_DETAIL).collect();
    match (known.state, seen) {
        (State::Succeeded | State::Cancelled, _) => String::new(),
        (State::Failed, Seen::Failed) => text,
        (State::Failed, Seen::Rejected) => format!("The provider refused it: {text}"),
        (State::Failed, _) => not_done(known, &text),
        (_, Seen::Absent) => "The provider says that it never saw it.".to_owned(),
        _ => text,
    }
}

/// Why one failed that the provider never had, and what was said of it last.
fn not_done(known: &Operation, text: &str) -> String {
    let why = if known.rejected { "The provider refused it." } else { "Nothing was done before its deadline." };
    format!("{why} {text}").trim_end().to_owned()
}

fn check_resource_id(id: Option<&str>) -> Result<(), Refusal> {
    let fits = |id: &str| !id.is_empty() && id.chars().count() <= MAX_RESOURCE_ID && !id.contains(char::is_control);
    if id.is_none_or(fits) {
        return Ok(());
    }
    let allowed = format!("resource_id: expected 1 to {MAX_RESOURCE_ID} characters, none of them a control character.");
    Err(Refusal::invalid_argument(allowed))
}

/// When something happens to the operation, and how long to pause after it.
fn moment(row: &Row, now: Timestamp) -> Moment {
    let pauses = ExponentialBuilder::new()
        .with_min_delay(Duration::from_millis(FIRST_PAUSE_MS))
        .with_max_delay(Duration::from_millis(LONGEST_PAUSE_MS))
        .with_factor(2.0)
        // Its own seed would be the same each time.
        .with_jitter_seed(Uuid::new_v4().as_u64_pair().0)
        .with_jitter()
        .without_max_times();
    let pause = pauses.build().nth(row.known.fruitless.min(16) as usize);
    let pause = pause.map_or(LONGEST_PAUSE_MS, |pause| pause.as_millis() as u64);
    Moment { now, pause, long_pause: LONG_PAUSE_MS.saturating_add(pause) }
}
