//! The tools of this component. Adding one touches its own file, its line here, and its function in the world.

use crate::engine::operations::{FindOperation, GetOperation};
use crate::engine::{MIGRATION_1, MIGRATION_2};
use crate::storage::Schema;
use crate::tool::{Entry, Registry};

pub mod automations;
#[cfg(feature = "service")]
pub mod deployments;
pub mod notes;

pub static REGISTRY: Registry = Registry {
    tools: &[
        Entry::tool::<notes::CreateNote>(),
        Entry::query::<notes::GetNote>(),
        Entry::tool::<automations::CreateAutomation>(),
        Entry::tool::<automations::SetInterval>(),
        Entry::query::<automations::GetAutomation>(),
        #[cfg(feature = "service")]
        Entry::tool::<deployments::StartDeployment>(),
        #[cfg(feature = "service")]
        Entry::unkeyed::<deployments::CancelOperation>(),
        Entry::query::<GetOperation>(),
        Entry::query::<FindOperation>(),
    ],
    schema: Schema {
        application_id: 0x63_66_6f_6c, // "cfol"
        migrations: &[MIGRATION_1, include_str!("tools/schema.sql"), MIGRATION_2],
        checks: &[automations::ONE_RECEIPT_EACH_VERSION],
    },
};
