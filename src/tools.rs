//! The tools of this component. Adding one touches its own file, its line here, and its function in the world.

use crate::engine::operations::{FindOperation, GetOperation};
use crate::engine::receipts;
use crate::storage::Schema;
use crate::tool::{Entry, Registry};

pub mod automations;
pub mod notes;

pub static REGISTRY: Registry = Registry {
    tools: &[
        Entry::tool::<notes::CreateNote>(),
        Entry::query::<notes::GetNote>(),
        Entry::tool::<automations::CreateAutomation>(),
        Entry::tool::<automations::SetInterval>(),
        Entry::query::<automations::GetAutomation>(),
        Entry::query::<GetOperation>(),
        Entry::query::<FindOperation>(),
    ],
    schema: Schema {
        application_id: 0x63_66_6f_6c, // "cfol"
        migrations: &[receipts::MIGRATION_1, include_str!("tools/schema.sql")],
        checks: &[automations::ONE_RECEIPT_EACH_VERSION],
    },
};
