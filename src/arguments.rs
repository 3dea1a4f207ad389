//! Types for a tool's arguments that hold valid values only: deserialising one checks it, and says what is allowed.
//!
//! They serialise to one canonical form (contract rule B11), which is what calls under the same key are compared by.
//! Text is compared as it is, without Unicode normalisation.

use crate::refusal::Refusal;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use uuid::Uuid;

/// The most that a call's arguments may be, in bytes of JSON.
pub const MAX_ARGUMENTS: usize = 64 * 1024;

/// Reads a call's arguments from JSON: an object that has every field that is required, and none that is unknown (with
/// `#[serde(deny_unknown_fields)]`), or twice.
///
/// # Errors
///
/// `invalid_argument`, which says where and what is allowed.
pub fn parse<A: DeserializeOwned>(json: &str) -> Result<A, Refusal> {
    if json.len() > MAX_ARGUMENTS {
        return Err(Refusal::invalid_argument(format!(
            "The arguments have {} bytes; at most {MAX_ARGUMENTS} are allowed.",
            json.len()
        )));
    }
    // serde would take an array as well, for the fields in order.
    if !json.trim_start_matches([' ', '\t', '\r', '\n']).starts_with('{') {
        return Err(Refusal::invalid_argument("The arguments are not a JSON object."));
    }
    let mut json = serde_json::Deserializer::from_str(json);
    let arguments = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // No path, or one that was not yet known.
        let path = if path == "." || path == "?" { String::new() } else { format!("{}: ", shorten(&path, 60)) };
        wrong(&path, &error.into_inner())
    })?;
    json.end().map_err(|error| wrong("", &error))?;
    Ok(arguments)
}

/// Text that is no JSON is told from JSON that the tool does not take.
fn wrong(path: &str, error: &serde_json::Error) -> Refusal {
    let start = if error.is_data() { "" } else { "The arguments cannot be read as JSON: " };
    Refusal::invalid_argument(format!("{start}{path}{}", shorten(&error.to_string(), 250)))
}

/// Messages repeat what the caller wrote, which may be long, and end with what was expected.
fn shorten(text: &str, most: usize) -> String {
    let length = text.chars().count();
    if length <= most {
        return text.to_owned();
    }
    let start = text.chars().take(most / 4);
    let end = text.chars().skip(length - (most - most / 4));
    start.chain(['…']).chain(end).collect()
}

/// An idempotency key: 1 to 128 of `A-Z a-z 0-9 _ -`, chosen by the caller before the first attempt at one intended
/// action, and the same for every retry of it.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Key(String);

impl Key {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Text of 1 to `MAX` characters (Unicode scalar values), without NUL, which SQLite's functions and shell cut short at.
#[derive(Clone, PartialEq, Eq, Serialize)]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An integer from `MIN` to `MAX`. `30.0` is the integer 30, as
/// [JSON Schema](https://json-schema.org/draft/2020-12/json-schema-core#section-4.2.3) has it.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Integer<const MIN: u32, const MAX: u32>(u32);

impl<const MIN: u32, const MAX: u32> Integer<MIN, MAX> {
    /// None if it is out of range. For the default of an optional argument.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (MIN..=MAX).contains(&number).then_some(Integer(number))
    }

    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }
}

/// The id of a resource or operation: a UUID, in any of its usual spellings, kept in lower case with hyphens.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Id(Uuid);

impl Id {
    /// As it stands in the database.
    #[must_use]
    pub fn text(self) -> String {
        self.0.to_string()
    }
}

impl Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

/// What the three kinds of text have in common: what is expected, and what a string must be.
trait FromText: Sized {
    fn expected(f: &mut fmt::Formatter<'_>) -> fmt::Result;
    fn from_text(text: &str) -> Option<Self>;
}

impl FromText for Key {
    fn expected(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key of 1 to 128 of A-Z a-z 0-9 _ -")
    }

    fn from_text(text: &str) -> Option<Self> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        let fits = (1..=128).contains(&text.len()) && text.bytes().all(allowed);
        fits.then(|| Key(text.to_owned()))
    }
}

impl<const MAX: usize> FromText for Text<MAX> {
    fn expected(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "text of 1 to {MAX} characters without NUL")
    }

    fn from_text(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= 4 * MAX && text.chars().count() <= MAX;
        (fits && !text.contains('\0')).then(|| Text(text.to_owned()))
    }
}

impl FromText for Id {
    fn expected(f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an id, such as 01890a5d-ac96-774b-bcce-b302099a8057")
    }

    fn from_text(text: &str) -> Option<Self> {
        Uuid::try_parse(text).ok().map(Id)
    }
}

struct TextVisitor<T>(PhantomData<T>);

impl<T: FromText> Visitor<'_> for TextVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::expected(f)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).ok_or_else(|| {
            let length = format!("a string of {} characters", text.chars().count());
            E::invalid_value(Unexpected::Other(&length), &self)
        })
    }
}

struct IntegerVisitor<const MIN: u32, const MAX: u32>;

impl<const MIN: u32, const MAX: u32> Visitor<'_> for IntegerVisitor<MIN, MAX> {
    type Value = Integer<MIN, MAX>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an integer from {MIN} to {MAX}")
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        let integer = u32::try_from(number).ok().and_then(Integer::new);
        integer.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(number), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        match u64::try_from(number) {
            Ok(number) => self.visit_u64(number),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        if number.fract() == 0.0 && (f64::from(MIN)..=f64::from(MAX)).contains(&number) {
            self.visit_u64(number as u64)
        } else {
            Err(E::invalid_value(Unexpected::Float(number), &self))
        }
    }
}

macro_rules! deserialize {
    ($([$($generics:tt)*] $type:ty;)*) => {$(
        impl<'de, $($generics)*> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_str(TextVisitor(PhantomData))
            }
        }
    )*};
}

deserialize! {
    [] Key;
    [] Id;
    [const MAX: usize] Text<MAX>;
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Integer<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntegerVisitor).map_err(|error| {
            let error = error.to_string();
            // A number that no type can hold never reaches the visitor.
            let missing = if error.contains("expected") {
                String::new()
            } else {
                format!(", expected an integer from {MIN} to {MAX}")
            };
            D::Error::custom(error + &missing)
        })
    }
}

macro_rules! schema {
    ($([$($generics:tt)*] $type:ty, $name:literal, $schema:tt;)*) => {$(
        impl<$($generics)*> JsonSchema for $type {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> Cow<'static, str> {
                $name.into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )*};
}

schema! {
    [] Key, "Key", { "type": "string", "pattern": "^[A-Za-z0-9_-]{1,128}$" };
    [] Id, "Id", { "type": "string", "format": "uuid" };
    [const MAX: usize] Text<MAX>, "Text", { "type": "string", "minLength": 1, "maxLength": MAX };
    [const MIN: u32, const MAX: u32] Integer<MIN, MAX>, "Integer",
        { "type": "integer", "minimum": MIN, "maximum": MAX };
}
