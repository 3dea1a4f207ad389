//! A component of somebody else's, with tools of its own over counterfoil as a library: what the tests need and no
//! user should have. Two revisions of one tool, arguments with defaults, a result of any size, and tools that trap.
#![cfg(target_family = "wasm")]

use counterfoil::arguments::{Integer, Key, Text};
use counterfoil::engine::operations::{FindOperation, GetOperation};
use counterfoil::engine::{MIGRATION_1, MIGRATION_2};
use counterfoil::refusal::Failure;
use counterfoil::storage::{Schema, Transaction};
use counterfoil::tool::{Entry, Registry, Tool};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

static REGISTRY: Registry = Registry {
    tools: &[
        Entry::tool::<Mark>(),
        Entry::tool::<MarkV2>(),
        Entry::tool::<Grow>(),
        Entry::tool::<Fail>(),
        Entry::query::<GetOperation>(),
        Entry::query::<FindOperation>(),
    ],
    schema: Schema {
        application_id: 0x7465_7374,
        migrations: &[
            MIGRATION_1,
            MIGRATION_2,
            "CREATE TABLE marks (
               text         TEXT    NOT NULL,
               weight       INTEGER NOT NULL,
               operation_id TEXT    NOT NULL UNIQUE REFERENCES receipts DEFERRABLE INITIALLY DEFERRED
             ) STRICT",
        ],
        checks: &[],
    },
};

#[derive(Serialize, Deserialize, JsonSchema)]
struct Marked {
    dry_run: bool,
    text: String,
}

/// Leaves a mark, unless it is a dry run.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Mark {
    idempotency_key: Key,
    text: Text<100>,
    #[serde(default = "one")]
    weight: Integer<1, 9>,
    #[serde(default)]
    dry_run: bool,
}

#[expect(clippy::expect_used, reason = "a constant")]
fn one() -> Integer<1, 9> {
    Integer::new(1).expect("1 is in range")
}

impl Tool for Mark {
    const NAME: &'static str = "mark";
    const TITLE: &'static str = "Mark";
    const DESCRIPTION: &'static str = "Leaves a mark, unless it is a dry run.";
    const PERMISSION: &'static str = "mark";
    type Reply = Marked;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Marked, Failure> {
        let text = self.text.as_str();
        if !self.dry_run {
            insert(transaction, text, self.weight.get())?;
        }
        Ok(Marked { dry_run: self.dry_run, text: text.to_owned() })
    }

    fn resource_id(_: &Marked) -> Option<&str> {
        None
    }
}

/// The same tool, changed in meaning: it marks in capitals.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MarkV2 {
    idempotency_key: Key,
    text: Text<100>,
}

impl Tool for MarkV2 {
    const NAME: &'static str = "mark_v2";
    const REVISION_OF: &'static str = Mark::NAME;
    const TITLE: &'static str = "Mark";
    const DESCRIPTION: &'static str = "Leaves a mark in capitals.";
    const PERMISSION: &'static str = "mark";
    type Reply = Marked;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Marked, Failure> {
        let text = self.text.as_str().to_uppercase();
        insert(transaction, &text, 1)?;
        Ok(Marked { dry_run: false, text })
    }

    fn resource_id(_: &Marked) -> Option<&str> {
        None
    }
}

/// Leaves a mark and answers as many bytes as it is told to.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Grow {
    idempotency_key: Key,
    bytes: Integer<0, 1_000_000>,
}

impl Tool for Grow {
    const NAME: &'static str = "grow";
    const TITLE: &'static str = "Grow";
    const DESCRIPTION: &'static str = "Answers many bytes.";
    const PERMISSION: &'static str = "mark";
    type Reply = Marked;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Marked, Failure> {
        insert(transaction, "grown", 1)?;
        Ok(Marked { dry_run: false, text: "x".repeat(self.bytes.get() as usize) })
    }

    fn resource_id(_: &Marked) -> Option<&str> {
        None
    }
}

#[derive(Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum How {
    /// Panics.
    Trap,
    /// Computes for ever.
    Spin,
    /// Takes memory until there is none.
    Hoard,
    /// Passes over SQLite's error and writes a mark all the same.
    GoOn,
    /// Rolls the engine's transaction back.
    RollBack,
    /// Writes a mark that claims to be another operation's.
    Orphan,
}

/// Leaves a mark and then goes wrong.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Fail {
    idempotency_key: Key,
    how: How,
}

impl Tool for Fail {
    const NAME: &'static str = "fail";
    const TITLE: &'static str = "Fail";
    const DESCRIPTION: &'static str = "Goes wrong after its effect.";
    const PERMISSION: &'static str = "mark";
    type Reply = Marked;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Marked, Failure> {
        insert(transaction, "failed", 1)?;
        match self.how {
            How::Trap => panic!("as told"),
            How::Spin => loop {
                std::hint::black_box(());
            },
            How::Hoard => {
                let mut hoard = Vec::new();
                loop {
                    hoard.push(vec![1_u8; 1 << 20]);
                    std::hint::black_box(&hoard);
                }
            }
            How::GoOn => {
                let large = "INSERT INTO marks VALUES (printf('%.*c', 4000000, 'x'), 1, 'large')";
                if transaction.execute(large, []).is_err() {
                    transaction.execute("INSERT INTO marks VALUES ('went on', 1, 'small')", [])?;
                }
                Ok(Marked { dry_run: false, text: String::new() })
            }
            How::RollBack => {
                let operation = transaction.operation_id().to_string();
                transaction.execute("INSERT OR ROLLBACK INTO marks VALUES ('again', 1, ?1)", [operation])?;
                Ok(Marked { dry_run: false, text: String::new() })
            }
            How::Orphan => {
                transaction.execute("INSERT INTO marks VALUES ('orphan', 1, 'no such operation')", [])?;
                Ok(Marked { dry_run: false, text: String::new() })
            }
        }
    }

    fn resource_id(_: &Marked) -> Option<&str> {
        None
    }
}

fn insert(transaction: &Transaction<'_>, text: &str, weight: u32) -> Result<(), Failure> {
    let operation = transaction.operation_id().to_string();
    transaction
        .execute("INSERT INTO marks (text, weight, operation_id) VALUES (?1, ?2, ?3)", (text, weight, operation))?;
    Ok(())
}

counterfoil::serve!(REGISTRY);
