//! What the author of a tool writes, and how a component lists its tools.
//!
//! A tool that changes something implements [`Tool`] on its arguments; one that only reads implements [`Query`]; one that
//! needs no key, since asking twice is asking once, [`Unkeyed`]. A [`Registry`] lists them, with the tables that they need.

use crate::arguments::Key;
use crate::engine::{self, operations};
use crate::refusal::Failure;
use crate::storage::{Schema, Snapshot, Transaction};
use crate::{Principal, reply};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A tool that changes something, once for each key. The type is its arguments; derive their `Deserialize` with
/// `deny_unknown_fields`, so that nothing which a caller means is passed over, and leave no field out of their
/// `Serialize`: calls under one key are compared by what it writes.
pub trait Tool: DeserializeOwned + Serialize + JsonSchema + 'static {
    /// In snake_case. A tool whose meaning changes gets a new name (contract rule A4).
    const NAME: &'static str;
    /// The tool of which this one is a revision: they share their keys.
    const REVISION_OF: &'static str = Self::NAME;
    const TITLE: &'static str;
    /// What it does. What a caller must know about keys is added to it.
    const DESCRIPTION: &'static str;
    const PERMISSION: &'static str;
    /// Whether it overwrites or removes something, rather than only adds.
    const DESTRUCTIVE: bool = false;
    /// Whether it reaches beyond the database, by way of the outbox.
    const OPEN_WORLD: bool = false;

    /// Written to a JSON object that is kept with the receipt and replayed unchanged. The answer holds its fields
    /// beside `status`, `replayed`, `retryable`, `operation_id`, `committed_at` and `valid_until`, so use other names.
    type Reply: Serialize + DeserializeOwned + JsonSchema;

    fn key(&self) -> &Key;

    /// Whether the resource that the call names is the caller's, as of now. A creation names none.
    ///
    /// # Errors
    ///
    /// [`Refusal::not_found`](crate::Refusal::not_found), worded the same for absent and foreign ids.
    fn access(&self, _: &Snapshot<'_>) -> Result<(), Failure> {
        Ok(())
    }

    /// Makes the change. Runs once access is granted and no receipt was found; conditions of its own, such as an
    /// expected version, are tested here.
    ///
    /// # Errors
    ///
    /// Whatever is returned, all that it did is rolled back, and the key stays unused.
    fn act(&self, transaction: &Transaction<'_>) -> Result<Self::Reply, Failure>;

    /// The id of what was created or changed.
    fn resource_id(reply: &Self::Reply) -> Option<&str>;
}

/// A tool that changes something and takes no key, since asking twice is asking once: it only sets what is wanted of
/// something that is there. The type is its arguments.
pub trait Unkeyed: DeserializeOwned + JsonSchema + 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    const PERMISSION: &'static str;
    /// As for [`Tool::DESTRUCTIVE`].
    const DESTRUCTIVE: bool = false;
    /// As for [`Tool::OPEN_WORLD`].
    const OPEN_WORLD: bool = false;

    /// Written to a JSON object, as for [`Tool::Reply`].
    type Reply: Serialize + DeserializeOwned + JsonSchema;

    /// The answer, if what is asked for holds already. None if it has to be done.
    ///
    /// # Errors
    ///
    /// As for [`Query::read`].
    fn read(&self, database: &Snapshot<'_>) -> Result<Option<Self::Reply>, Failure>;

    /// Does it. The transaction's `operation_id` names nothing: there is no receipt.
    ///
    /// # Errors
    ///
    /// Whatever is returned, all that it did is rolled back.
    fn act(&self, transaction: &Transaction<'_>) -> Result<Self::Reply, Failure>;
}

/// A tool that only reads. The type is its arguments.
pub trait Query: DeserializeOwned + JsonSchema + 'static {
    const NAME: &'static str;
    const TITLE: &'static str;
    const DESCRIPTION: &'static str;
    /// None if it depends on the arguments: `read` must check it then, before it looks at the database.
    const PERMISSION: Option<&'static str>;

    /// Written to a JSON object, as for [`Tool::Reply`].
    type Reply: Serialize + DeserializeOwned + JsonSchema;

    /// # Errors
    ///
    /// [`Refusal::not_found`](crate::Refusal::not_found), worded the same for absent and foreign ids; or whatever SQLite said.
    fn read(&self, database: &Snapshot<'_>) -> Result<Self::Reply, Failure>;
}

/// A component's tools and tables.
pub struct Registry {
    pub tools: &'static [Entry],
    pub schema: Schema,
}

impl Registry {
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&'static Entry> {
        self.tools.iter().find(|entry| entry.name == name)
    }

    /// Every tool, as an agent is shown it.
    #[must_use]
    pub fn describe(&self) -> Vec<Description> {
        let finds = self.find(operations::FindOperation::NAME).is_some();
        let describe = |entry: &Entry| {
            let mut description = (entry.describe)();
            if let Some(tool) = entry.revision_of.filter(|_| finds) {
                description.description += &reply::about_lookup(tool);
            }
            description
        };
        self.tools.iter().map(describe).collect()
    }
}

/// A tool's line in the registry.
pub struct Entry {
    pub name: &'static str,
    pub permission: Option<&'static str>,
    /// Under which tool's name its keys are kept; none if it takes none.
    pub revision_of: Option<&'static str>,
    describe: fn() -> Description,
    pub(crate) parse: fn(Principal, &str) -> engine::Prepared,
}

impl Entry {
    #[must_use]
    pub const fn tool<T: Tool>() -> Entry {
        Entry {
            name: T::NAME,
            permission: Some(T::PERMISSION),
            revision_of: Some(T::REVISION_OF),
            describe: describe_tool::<T>,
            parse: engine::parse_tool::<T>,
        }
    }

    #[must_use]
    pub const fn unkeyed<U: Unkeyed>() -> Entry {
        Entry {
            name: U::NAME,
            permission: Some(U::PERMISSION),
            revision_of: None,
            describe: describe_unkeyed::<U>,
            parse: engine::parse_unkeyed::<U>,
        }
    }

    #[must_use]
    pub const fn query<Q: Query>() -> Entry {
        Entry {
            name: Q::NAME,
            permission: Q::PERMISSION,
            revision_of: None,
            describe: describe_query::<Q>,
            parse: engine::parse_query::<Q>,
        }
    }
}

/// One tool, as an agent is shown it.
pub struct Description {
    pub name: &'static str,
    pub title: &'static str,
    pub description: String,
    /// JSON Schema 2020-12 of the arguments and of the reply.
    pub input_schema: String,
    pub output_schema: String,
    pub permission: Option<&'static str>,
    pub read_only: bool,
    pub destructive: bool,
    pub open_world: bool,
}

fn describe_tool<T: Tool>() -> Description {
    Description {
        name: T::NAME,
        title: T::TITLE,
        description: format!("{} {}", T::DESCRIPTION, reply::about_keys()),
        input_schema: schemars::schema_for!(T).as_value().to_string(),
        output_schema: reply::schema::<T::Reply>(true),
        permission: Some(T::PERMISSION),
        read_only: false,
        destructive: T::DESTRUCTIVE,
        open_world: T::OPEN_WORLD,
    }
}

fn describe_unkeyed<U: Unkeyed>() -> Description {
    Description {
        name: U::NAME,
        title: U::TITLE,
        description: U::DESCRIPTION.to_owned(),
        input_schema: schemars::schema_for!(U).as_value().to_string(),
        output_schema: reply::schema::<U::Reply>(false),
        permission: Some(U::PERMISSION),
        read_only: false,
        destructive: U::DESTRUCTIVE,
        open_world: U::OPEN_WORLD,
    }
}

fn describe_query<Q: Query>() -> Description {
    Description {
        name: Q::NAME,
        title: Q::TITLE,
        description: Q::DESCRIPTION.to_owned(),
        input_schema: schemars::schema_for!(Q).as_value().to_string(),
        output_schema: reply::schema::<Q::Reply>(false),
        permission: Q::PERMISSION,
        read_only: true,
        destructive: false,
        open_world: false,
    }
}
