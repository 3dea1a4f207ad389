//! What `wit/upkeep.wit` promises. All of it requires `maintain`, or is `denied`.

use super::bindings::exports::counterfoil::tools::upkeep;
use super::permitted;
use crate::engine::listing::{self, Listed};
use crate::engine::{restoration, retention};
use crate::imports::types;
use crate::refusal::Refusal;
use crate::storage::{self, Database};
use crate::tool::Registry;

/// SQLite's own integrity check, and one receipt to every effect. Returns what is wrong, a sentence each.
///
/// # Errors
///
/// As for any call that cannot use the database. Nothing is changed but what opening it changes: its schema and its
/// journal mode are brought up to date.
pub fn verify(registry: &'static Registry) -> Result<Vec<String>, types::Refusal> {
    with(registry, |database| database.check(&registry.schema))
}

/// Moves the log into the database file, so that the file alone is a copy.
///
/// # Errors
///
/// As for any call that cannot use the database. Nothing committed is lost.
pub fn checkpoint(registry: &'static Registry) -> Result<(), types::Refusal> {
    with(registry, Database::checkpoint)
}

/// Closes the database cleanly; the next call opens it again.
///
/// # Errors
///
/// As for any call that cannot use the database; it is then open as before. If storage failed, the files are as a killed process
/// would leave them. Nothing committed is lost.
pub fn close() -> Result<(), types::Refusal> {
    permitted("maintain")?;
    Ok(storage::close()?)
}

/// Turns at most `limit` (1 to 10,000) expired receipts into tombstones, and returns how many.
///
/// # Errors
///
/// `invalid-argument`; or as for any call that cannot use the database. All of the step is done or none of it.
pub fn sweep(registry: &'static Registry, limit: u32) -> Result<u32, types::Refusal> {
    with(registry, |database| retention::sweep(database, limit))
}

/// Marks the database as restored from an older copy.
///
/// # Errors
///
/// As for any call that cannot use the database: do not let agents use the copy then.
pub fn mark_restored(registry: &'static Registry) -> Result<upkeep::Restoration, types::Refusal> {
    with(registry, restoration::mark).map(Into::into)
}

/// Whether the database is marked, and since when.
///
/// # Errors
///
/// As for any call that cannot use the database.
pub fn restored(registry: &'static Registry) -> Result<Option<upkeep::Restoration>, types::Refusal> {
    with(registry, restoration::find).map(|found| found.map(Into::into))
}

/// Takes the mark away, and returns what it held for.
///
/// # Errors
///
/// As for any call that cannot use the database. The mark stays.
pub fn accept_restored(registry: &'static Registry) -> Result<Option<upkeep::Restoration>, types::Refusal> {
    with(registry, restoration::accept).map(|found| found.map(Into::into))
}

/// At most `limit` (1 to 1,000) operations whose effect is outside the database, in one state or in any, after that with the
/// id `after`, the oldest first.
///
/// # Errors
///
/// `invalid-argument`; or as for any call that cannot use the database.
pub fn list_operations(
    registry: &'static Registry,
    state: Option<types::State>,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<upkeep::ListedOperation>, types::Refusal> {
    let page = with(registry, |database| listing::list(database, state.map(Into::into), after, limit))?;
    Ok(page.into_iter().map(Into::into).collect())
}

/// How many operations whose effect is outside the database there are in each state, in the order of the states.
///
/// # Errors
///
/// As for any call that cannot use the database.
pub fn count_operations(registry: &'static Registry) -> Result<Vec<(types::State, u64)>, types::Refusal> {
    let counts = with(registry, listing::count)?;
    Ok(counts.into_iter().map(|(state, number)| (state.into(), number)).collect())
}

fn with<T>(
    registry: &'static Registry,
    work: impl FnOnce(&Database) -> Result<T, Refusal>,
) -> Result<T, types::Refusal> {
    permitted("maintain")?;
    Ok(storage::with(&registry.schema, work)?)
}

impl From<restoration::Restoration> for upkeep::Restoration {
    fn from(restoration: restoration::Restoration) -> Self {
        upkeep::Restoration { since: restoration.since.milliseconds(), unfinished: restoration.unfinished }
    }
}

impl From<Listed> for upkeep::ListedOperation {
    fn from(listed: Listed) -> Self {
        upkeep::ListedOperation {
            workspace: listed.workspace,
            subject: listed.subject,
            started_at: listed.started_at.milliseconds(),
            operation: listed.status.into(),
        }
    }
}
