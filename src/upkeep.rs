//! Upkeep for the host to schedule. Requires the permission `maintain`.

use crate::imports::caller;
use crate::refusal::Refusal;
use crate::storage;
use crate::tool::Registry;

const MAINTAIN: &str = "maintain";

/// SQLite's own integrity check, and one receipt to every effect. Returns what is wrong, a sentence each.
///
/// # Errors
///
/// `denied`; or as for any call that cannot use the database. Nothing is changed.
pub fn verify(registry: &'static Registry) -> Result<Vec<String>, Refusal> {
    permitted()?;
    storage::with(&registry.schema, |database| database.check(&registry.schema))
}

/// Moves the log into the database file, so that the file alone is a copy.
///
/// # Errors
///
/// `denied`; or as for any call that cannot use the database. Nothing committed is lost.
pub fn checkpoint(registry: &'static Registry) -> Result<(), Refusal> {
    permitted()?;
    storage::with(&registry.schema, |database| database.checkpoint())
}

/// Closes the database cleanly; the next call opens it again.
///
/// # Errors
///
/// `denied`, or `unavailable` if storage failed: the files are then as a killed process would leave them, and nothing
/// committed is lost.
pub fn close() -> Result<(), Refusal> {
    permitted()?;
    storage::close()
}

fn permitted() -> Result<(), Refusal> {
    caller::current(0).ok_or_else(Refusal::no_caller)?.require(MAINTAIN)
}
