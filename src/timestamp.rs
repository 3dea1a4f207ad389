//! A moment on the wall clock: milliseconds in the database and in WIT, RFC 3339 (UTC) in JSON.

use rusqlite::types::{FromSql, FromSqlResult, ToSql, ToSqlOutput, ValueRef};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserialize, Deserializer, Error};
use serde::{Serialize, Serializer};
use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01T00:00:00Z, up to the year 9999.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const MIN: Timestamp = Timestamp(0);
    pub const MAX: Timestamp = Timestamp(253_402_300_799_999); // 9999-12-31T23:59:59.999Z

    /// The host's wall clock. It may step either way: a difference of two readings proves nothing without a margin.
    #[must_use]
    pub fn now() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)).min(Self::MAX)
    }

    #[must_use]
    pub fn plus(self, milliseconds: u64) -> Self {
        Timestamp(self.0.saturating_add(milliseconds)).min(Self::MAX)
    }

    #[must_use]
    pub fn from_milliseconds(milliseconds: u64) -> Self {
        Timestamp(milliseconds).min(Self::MAX)
    }

    #[must_use]
    pub fn milliseconds(self) -> u64 {
        self.0
    }
}

impl ToSql for Timestamp {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::from(self.0.cast_signed()))
    }
}

impl FromSql for Timestamp {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let milliseconds = value.as_i64()?;
        Ok(Timestamp(u64::try_from(milliseconds).unwrap_or(0)).min(Self::MAX))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&humantime::format_rfc3339_millis(UNIX_EPOCH + Duration::from_millis(self.0)))
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <Cow<'de, str>>::deserialize(deserializer)?;
        let time = humantime::parse_rfc3339(&text).map_err(D::Error::custom)?;
        let since = time.duration_since(UNIX_EPOCH).map_err(D::Error::custom)?;
        Ok(Timestamp(since.as_millis() as u64))
    }
}

impl JsonSchema for Timestamp {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Timestamp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}
