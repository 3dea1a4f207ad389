//! Notes: created once, read, never edited here.

use crate::Timestamp;
use crate::arguments::{Id, Key, Text};
use crate::refusal::{Failure, Refusal};
use crate::storage::{Snapshot, Transaction};
use crate::tool::{Query, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateNote {
    idempotency_key: Key,
    body: Text<10_000>,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct NoteCreated {
    pub note_id: String,
}

impl Tool for CreateNote {
    const NAME: &'static str = "create_note";
    const TITLE: &'static str = "Create note";
    const DESCRIPTION: &'static str = "Creates a note of 1 to 10,000 characters in your workspace.";
    const PERMISSION: &'static str = "write-notes";
    type Reply = NoteCreated;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<NoteCreated, Failure> {
        let note_id = Uuid::now_v7().to_string();
        transaction.execute(
            "INSERT INTO notes (note_id, workspace, body, created_at, operation_id) VALUES (?1, ?2, ?3, ?4, ?5)",
            (
                &note_id,
                transaction.workspace(),
                self.body.as_str(),
                transaction.now(),
                transaction.operation_id().to_string(),
            ),
        )?;
        Ok(NoteCreated { note_id })
    }

    fn resource_id(reply: &NoteCreated) -> Option<&str> {
        Some(&reply.note_id)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetNote {
    note_id: Id,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Note {
    pub note_id: String,
    pub body: String,
    pub created_at: Timestamp,
}

impl Query for GetNote {
    const NAME: &'static str = "get_note";
    const TITLE: &'static str = "Get note";
    const DESCRIPTION: &'static str = "Reads a note of your workspace as it is now.";
    const PERMISSION: Option<&'static str> = Some("read");
    type Reply = Note;

    fn read(&self, database: &Snapshot<'_>) -> Result<Note, Failure> {
        let note = database.query_row(
            "SELECT note_id, body, created_at FROM notes WHERE note_id = ?1 AND workspace = ?2",
            (self.note_id.text(), database.workspace()),
            |row| Ok(Note { note_id: row.get(0)?, body: row.get(1)?, created_at: row.get(2)? }),
        )?;
        Ok(note.ok_or(Refusal::not_found("There is no such note in your workspace."))?)
    }
}
