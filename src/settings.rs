//! What an operator may set, in the environment that the host gives the component.

use crate::refusal::Refusal;
use std::cell::OnceCell;
use std::time::Duration;

/// How long receipts are kept, unless `COUNTERFOIL_RETENTION` says otherwise, in milliseconds: 30 days.
pub const RETENTION_MS: u64 = 30 * DAY_MS;
/// The least that `COUNTERFOIL_RETENTION` may say: 1 day. Callers retry for hours, and a key must outlive that.
pub const MIN_RETENTION_MS: u64 = DAY_MS;
/// By when an effect outside the database must have been sent, unless `COUNTERFOIL_DEADLINE` says otherwise, in
/// milliseconds from its receipt: 24 hours.
pub const DEADLINE_MS: u64 = DAY_MS;
/// The least that `COUNTERFOIL_DEADLINE` may say: 1 second.
pub const MIN_DEADLINE_MS: u64 = 1000;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub retention_ms: u64,
    pub deadline_ms: u64,
}

/// The settings, read once by each instance.
///
/// # Errors
///
/// `unavailable`, if one of them is no duration or too short: then no call is answered, since a promise could not be kept.
pub(crate) fn get() -> Result<Settings, Refusal> {
    thread_local! {
        static READ: OnceCell<Result<Settings, Refusal>> = const { OnceCell::new() };
    }
    READ.with(|read| read.get_or_init(read_environment).clone())
}

fn read_environment() -> Result<Settings, Refusal> {
    Ok(Settings {
        retention_ms: duration("COUNTERFOIL_RETENTION", RETENTION_MS, MIN_RETENTION_MS)?,
        deadline_ms: duration("COUNTERFOIL_DEADLINE", DEADLINE_MS, MIN_DEADLINE_MS)?,
    })
}

fn duration(name: &str, default: u64, least: u64) -> Result<u64, Refusal> {
    let Some(text) = std::env::var_os(name) else { return Ok(default) };
    let read = text.to_str().and_then(|text| humantime::parse_duration(text).ok());
    let milliseconds = read.and_then(|duration| u64::try_from(duration.as_millis()).ok());
    milliseconds.filter(|milliseconds| *milliseconds >= least).ok_or_else(|| {
        let [least, example] = [least, default].map(|time| humantime::format_duration(Duration::from_millis(time)));
        Refusal::bad_setting(format!("{name} must be a duration of at least {least}, such as {example}."))
    })
}
