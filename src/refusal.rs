//! Why a call failed, and the one place in which errors of SQLite and its storage become refusals.

use crate::imports::storage;
use crate::storage::CommitError;
use rusqlite::ErrorCode;
use schemars::JsonSchema;
use serde::Serialize;
use std::borrow::Cow;

/// In the order in which they are checked: the first that applies is returned. All but `unconfirmed` promise that the
/// call changed nothing, and none is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The host named no caller, or one that lacks the permission required.
    Denied,
    /// An argument breaks a documented limit.
    InvalidArgument,
    /// The database stayed locked for as long as the host allowed.
    Busy,
    /// The database cannot be used: full, read-only, damaged, newer than this component, or its storage failed.
    Unavailable,
    /// Absent, or outside the caller's workspace: the answer is the same.
    NotFound,
    /// The key's receipt has expired.
    KeyExpired,
    /// The key was used with other arguments, or with another revision of the tool.
    KeyConflict,
    /// The resource has moved on.
    VersionConflict,
    /// The call may have committed.
    Unconfirmed,
}

/// A refusal that its reader can act on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Refusal {
    pub code: Code,
    /// One sentence, free of other callers' data.
    pub message: Cow<'static, str>,
    /// Whether the same call, same key, can succeed later.
    pub retryable: bool,
    /// Milliseconds to wait before that; none if the caller may choose.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u32>,
    /// What to do now, in the imperative.
    pub next_action: Cow<'static, str>,
}

/// What stops a tool: its own refusal, or SQLite's error, which the engine must see as it is.
#[derive(Debug)]
pub enum Failure {
    Refused(Refusal),
    Storage(rusqlite::Error),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Failure::Refused(refusal)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Failure::Storage(error)
    }
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Refused(refusal) => refusal,
            Failure::Storage(error) => error.into(),
        }
    }
}

/// What SQLite's error means to a caller whose call was rolled back.
impl From<rusqlite::Error> for Refusal {
    fn from(error: rusqlite::Error) -> Self {
        let Some(sqlite) = error.sqlite_error() else {
            // A column of another type than the schema says, or the like.
            return Self::damaged();
        };
        match sqlite.code {
            ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Self::busy(),
            ErrorCode::DiskFull => Self::no_space(),
            ErrorCode::ReadOnly => Self::read_only(),
            ErrorCode::NotADatabase => {
                Self::unavailable("The file is not a SQLite database.", false, "Ask an operator to name another file.")
            }
            ErrorCode::OutOfMemory => Self::unavailable(
                "The call needs more memory than the host allows.",
                true,
                "Repeat the call with the same key; if it fails again, ask an operator to raise the limit, or to lower COUNTERFOIL_CACHE.",
            ),
            ErrorCode::DatabaseCorrupt => Self::damaged(),
            ErrorCode::CannotOpen => Self::unavailable(
                "The database could not be opened: another process is taking it over, or it was moved.",
                true,
                "Repeat the call with the same key; if it fails again, ask an operator to look at the file.",
            ),
            ErrorCode::SystemIoFailure => Self::storage_failed(),
            _ => {
                let what = rusqlite::ffi::code_to_str(sqlite.extended_code);
                Self::unavailable(
                    format!("SQLite refused the change: {what} ({}).", sqlite.extended_code),
                    false,
                    "Ask an operator to look at the database's triggers and limits.",
                )
            }
        }
    }
}

/// What an error of the host's storage means, where it did not pass through SQLite.
impl From<storage::Error> for Refusal {
    fn from(error: storage::Error) -> Self {
        match error {
            storage::Error::ReadOnly => Self::read_only(),
            storage::Error::NoSpace => Self::no_space(),
            storage::Error::NotFound | storage::Error::Io => Self::storage_failed(),
        }
    }
}

impl From<CommitError> for Refusal {
    fn from(error: CommitError) -> Self {
        match error {
            CommitError::Undone(error) => error.into(),
            CommitError::Unknown => Self::unconfirmed(),
        }
    }
}

impl Refusal {
    pub(crate) fn new(
        code: Code,
        message: impl Into<Cow<'static, str>>,
        retryable: bool,
        next_action: impl Into<Cow<'static, str>>,
    ) -> Self {
        Refusal { code, message: message.into(), retryable, retry_after_ms: None, next_action: next_action.into() }
    }

    pub(crate) fn no_caller() -> Self {
        Self::new(
            Code::Denied,
            "The host named no caller.",
            false,
            "Sign in, or ask the operator to name a caller, then repeat the call with the same key.",
        )
    }

    /// The host says why.
    pub(crate) fn not_to_be_opened(why: String) -> Self {
        let next = "Ask the operator to mend it, then repeat the call with the same key.";
        Self::unavailable(why, false, next)
    }

    pub(crate) fn no_such_tool() -> Self {
        Self::new(
            Code::InvalidArgument,
            "There is no tool of this name.",
            false,
            "Call one of the tools that are listed.",
        )
    }

    pub(crate) fn lacks(permission: &str) -> Self {
        Self::new(
            Code::Denied,
            format!("The caller lacks the permission {permission}."),
            false,
            "Ask for the permission, then repeat the call with the same key.",
        )
    }

    /// An argument breaks a limit of the tool's own. `message` says which, where, and what is allowed.
    #[must_use]
    pub fn invalid_argument(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(
            Code::InvalidArgument,
            message,
            false,
            "Correct the arguments. Nothing was done, and a key is still unused.",
        )
    }

    /// The resource is absent or outside the caller's workspace, which must not be told apart.
    #[must_use]
    pub fn not_found(message: &'static str) -> Self {
        Self::new(Code::NotFound, message, false, "Check the id. Do not create it again on a guess.")
    }

    /// The resource is no longer in the state that the edit was decided on.
    #[must_use]
    pub fn version_conflict(message: &'static str) -> Self {
        Self::new(Code::VersionConflict, message, false, "Read the resource, decide again, and use a new key.")
    }

    pub(crate) fn key_expired() -> Self {
        Self::new(
            Code::KeyExpired,
            "The receipt of this key has expired.",
            false,
            "Read the resource to see what was done. Use a new key only for a new action.",
        )
    }

    pub(crate) fn key_conflict() -> Self {
        Self::new(
            Code::KeyConflict,
            "This key was used with other arguments.",
            false,
            "Repeat the first call with its own arguments, or use a new key for a new action.",
        )
    }

    pub(crate) fn key_of_other_revision(name: &str) -> Self {
        Self::new(
            Code::KeyConflict,
            format!("This key belongs to a call of {name}."),
            false,
            format!("Repeat the call as {name}, or use a new key for a new action."),
        )
    }

    pub(crate) fn busy() -> Self {
        Refusal {
            retry_after_ms: Some(250),
            ..Self::new(
                Code::Busy,
                "The database stayed locked by another process.",
                true,
                "Repeat the call with the same key after a pause.",
            )
        }
    }

    pub(crate) fn unconfirmed() -> Self {
        Self::new(
            Code::Unconfirmed,
            "Storage failed, or was lost to another instance, while the call was being committed: it may have committed or not.",
            true,
            "Repeat the call with the same key and arguments: it acts at most once.",
        )
    }

    /// The receipt may have been in what the restored copy does not have.
    pub(crate) fn lost_receipts() -> Self {
        Self::new(
            Code::Unconfirmed,
            "The database was restored from an older copy: this may be of the time that is not in it.",
            false,
            "Ask an operator whether the action happened. Once the restored copy is accepted, repeat the call with the \
             same key.",
        )
    }

    pub(crate) fn bad_setting(message: String) -> Self {
        Self::unavailable(message, false, "Ask an operator to correct the component's environment.")
    }

    pub(crate) fn storage_failed() -> Self {
        Self::unavailable(
            "The storage of the database failed, or was lost to another instance.",
            true,
            "Repeat the call with the same key, on a new instance; if it fails again, ask an operator to look at the disk.",
        )
    }

    pub(crate) fn no_space() -> Self {
        Self::unavailable(
            "There is no space left for the database.",
            true,
            "Ask an operator to free space, then repeat the call with the same key.",
        )
    }

    pub(crate) fn read_only() -> Self {
        Self::unavailable("The database is read-only.", false, "Ask an operator to make the file writable.")
    }

    pub(crate) fn wrong_mode() -> Self {
        Self::unavailable(
            "SQLite cannot use the database in the host's sharing mode.",
            false,
            "Ask an operator to open it in another sharing mode first.",
        )
    }

    pub(crate) fn foreign_database() -> Self {
        Self::unavailable(
            "The file is the database of another program.",
            false,
            "Ask an operator to name another file.",
        )
    }

    pub(crate) fn newer_database() -> Self {
        Self::unavailable(
            "The database was written by a newer version of this component.",
            false,
            "Ask an operator to run the newer version.",
        )
    }

    pub(crate) fn damaged() -> Self {
        Self::unavailable("The database is damaged.", false, "Ask an operator to run verify and to restore a backup.")
    }

    fn unavailable(
        message: impl Into<Cow<'static, str>>,
        retryable: bool,
        next_action: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(Code::Unavailable, message, retryable, next_action)
    }
}
