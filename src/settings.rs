//! What an operator may set, in the environment that the host gives the component.

use crate::refusal::Refusal;
use std::cell::OnceCell;
use std::ops::RangeInclusive;
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
/// How much of the database an instance keeps in its memory, unless `COUNTERFOIL_CACHE` says otherwise, in megabytes of
/// 1,048,576 bytes: SQLite's [`cache_size`](https://sqlite.org/pragma.html#pragma_cache_size). With its default, 2, a key is not found
/// among 100,000 without reading.
pub const CACHE_MB: u32 = 16;
/// What `COUNTERFOIL_CACHE` may say. What is changed beyond that is written before its commit. With the most, an instance of 64 MB
/// has room left to work; under `sole-atomic` that must hold the journal as well.
pub const CACHE_RANGE_MB: RangeInclusive<u32> = 1..=32;

const DAY_MS: u64 = 24 * 60 * 60 * 1000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub retention_ms: u64,
    pub deadline_ms: u64,
    pub cache_mb: u32,
}

/// The settings, read once by each instance.
///
/// # Errors
///
/// `unavailable`, if one of them is not what it may be: then no call is answered, since a promise could not be kept.
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
        cache_mb: cache()?,
    })
}

fn cache() -> Result<u32, Refusal> {
    const NAME: &str = "COUNTERFOIL_CACHE";
    let Some(text) = std::env::var_os(NAME) else { return Ok(CACHE_MB) };
    let read = text.to_str().and_then(|text| text.parse().ok());
    read.filter(|megabytes| CACHE_RANGE_MB.contains(megabytes)).ok_or_else(|| {
        let (least, most) = CACHE_RANGE_MB.into_inner();
        Refusal::bad_setting(format!(
            "{NAME} must be a number of megabytes from {least} to {most}, such as {CACHE_MB}."
        ))
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
