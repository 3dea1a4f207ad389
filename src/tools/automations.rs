//! Automations: run every so many minutes, and edited under an expected version.

use crate::arguments::{Id, Integer, Key};
use crate::refusal::{Failure, Refusal};
use crate::storage::{Snapshot, Transaction};
use crate::tool::{Query, Tool};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

const NOT_FOUND: &str = "There is no such automation in your workspace.";

/// Every version is one committed call, so one receipt.
pub const ONE_RECEIPT_EACH_VERSION: &str = "
    SELECT 'automation ' || automation_id || ' is at version ' || version || ' but has ' || count(resource_id) || ' receipts'
    FROM automations LEFT JOIN receipts ON resource_id = automation_id
    GROUP BY automation_id HAVING count(resource_id) <> version";

type Minutes = Integer<5, 1440>;

/// An automation, as it is now or as a call left it.
#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Automation {
    pub automation_id: String,
    pub interval_minutes: u32,
    /// 1 at first; one more with each edit.
    pub version: u32,
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateAutomation {
    idempotency_key: Key,
    interval_minutes: Minutes,
}

impl Tool for CreateAutomation {
    const NAME: &'static str = "create_automation";
    const TITLE: &'static str = "Create automation";
    const DESCRIPTION: &'static str =
        "Creates an automation in your workspace that runs every 5 to 1,440 minutes, at version 1.";
    const PERMISSION: &'static str = "write-automations";
    type Reply = Automation;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Automation, Failure> {
        let automation = Automation {
            automation_id: Uuid::now_v7().to_string(),
            interval_minutes: self.interval_minutes.get(),
            version: 1,
        };
        transaction.execute(
            "INSERT INTO automations (automation_id, workspace, interval_minutes, version, operation_id)
             VALUES (?1, ?2, ?3, ?4, ?5)",
            (
                &automation.automation_id,
                transaction.workspace(),
                automation.interval_minutes,
                automation.version,
                transaction.operation_id().to_string(),
            ),
        )?;
        Ok(automation)
    }

    fn resource_id(reply: &Automation) -> Option<&str> {
        Some(&reply.automation_id)
    }
}

#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetInterval {
    idempotency_key: Key,
    automation_id: Id,
    /// The version that the edit was decided on.
    expected_version: Integer<1, { u32::MAX - 1 }>,
    interval_minutes: Minutes,
}

impl Tool for SetInterval {
    const NAME: &'static str = "set_interval";
    const TITLE: &'static str = "Set interval";
    const DESCRIPTION: &'static str = "Changes how often an automation of your workspace runs: every 5 to 1,440 \
        minutes. expected_version is the version that you read and decided on; if it has moved on, the edit is \
        refused. A retry of an edit that committed is recognised by its key although the version has moved on.";
    const PERMISSION: &'static str = "write-automations";
    const DESTRUCTIVE: bool = true;
    type Reply = Automation;

    fn key(&self) -> &Key {
        &self.idempotency_key
    }

    fn access(&self, database: &Snapshot<'_>) -> Result<(), Failure> {
        find(database, self.automation_id).map(drop)
    }

    fn act(&self, transaction: &Transaction<'_>) -> Result<Automation, Failure> {
        let expected = self.expected_version.get();
        let automation = Automation {
            automation_id: self.automation_id.text(),
            interval_minutes: self.interval_minutes.get(),
            version: expected + 1,
        };
        let changed = transaction.execute(
            "UPDATE automations SET interval_minutes = ?1, version = ?2, operation_id = ?3
             WHERE automation_id = ?4 AND workspace = ?5 AND version = ?6",
            (
                automation.interval_minutes,
                automation.version,
                transaction.operation_id().to_string(),
                &automation.automation_id,
                transaction.workspace(),
                expected,
            ),
        )?;
        if changed == 0 {
            return Err(Refusal::version_conflict("The automation is no longer at the expected version.").into());
        }
        Ok(automation)
    }

    fn resource_id(reply: &Automation) -> Option<&str> {
        Some(&reply.automation_id)
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GetAutomation {
    automation_id: Id,
}

impl Query for GetAutomation {
    const NAME: &'static str = "get_automation";
    const TITLE: &'static str = "Get automation";
    const DESCRIPTION: &'static str = "Reads an automation of your workspace as it is now.";
    const PERMISSION: Option<&'static str> = Some("read");
    type Reply = Automation;

    fn read(&self, database: &Snapshot<'_>) -> Result<Automation, Failure> {
        find(database, self.automation_id)
    }
}

fn find(database: &Snapshot<'_>, automation_id: Id) -> Result<Automation, Failure> {
    let automation = database.query_row(
        "SELECT automation_id, interval_minutes, version FROM automations WHERE automation_id = ?1 AND workspace = ?2",
        (automation_id.text(), database.workspace()),
        |row| Ok(Automation { automation_id: row.get(0)?, interval_minutes: row.get(1)?, version: row.get(2)? }),
    )?;
    Ok(automation.ok_or(Refusal::not_found(NOT_FOUND))?)
}
