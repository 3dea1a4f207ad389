//! What the provider took: one SQLite file, one transaction for each request.
//!
//! What was committed survives the death of the process; a power cut is not provided for. The clock and the faults are the
//! caller's: what happens here follows from the rows and the arguments alone.

use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, Transaction, TransactionBehavior};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::path::Path;
use std::time::Duration;

/// `cpro` in ASCII: another program's database is refused.
const APPLICATION_ID: i32 = 0x6370_726f;
const VERSION: i32 = 1;

pub struct Store(Connection);

/// What a client asks for.
#[derive(Clone, Debug)]
pub struct Order {
    pub key: String,
    pub client_reference: String,
    /// A JSON object.
    pub request: Value,
}

/// How an order is taken.
pub struct Terms {
    /// How long a key is known after it was first received, in milliseconds. None if keys are not compared.
    pub keys_known_for: Option<u64>,
    /// How long the deployment runs, in milliseconds.
    pub runs_for: u64,
    /// Whether it ends as failed.
    pub fails: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// Taken now.
    New(Deployment),
    /// Taken earlier, by this key.
    Known(Deployment),
    /// The key is known for another order. Nothing was changed.
    Conflict,
}

/// What becomes of a deployment that is running when it is to be cancelled. A finished one stays as it is.
#[derive(Clone, Copy)]
pub enum Cancelling {
    Stop,
    /// It is told to stop, and will succeed when its time comes.
    OutrunLater,
    /// It has succeeded in that moment.
    OutrunNow,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Deployment {
    pub id: String,
    pub state: State,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    Succeeded,
    Failed,
    Cancelled,
}

#[derive(Debug)]
pub enum OpenError {
    Sqlite(rusqlite::Error),
    /// The file belongs to another program, or to another version of this one. It was not changed.
    Foreign,
}

impl Store {
    /// Makes the file if it is not there.
    ///
    /// # Errors
    ///
    /// The file cannot be opened or is somebody else's.
    pub fn open(file: &Path) -> Result<Self, OpenError> {
        let mut connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let number = |sql: &str| transaction.query_row(sql, [], |row| row.get::<_, i32>(0));
        let found = (number("PRAGMA application_id")?, number("PRAGMA user_version")?);
        match found {
            (0, 0) if number("SELECT count(*) FROM sqlite_schema")? == 0 => {
                transaction.execute_batch(include_str!("deployments.sql"))?;
                transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
                transaction.pragma_update(None, "user_version", VERSION)?;
            }
            (APPLICATION_ID, VERSION) => {}
            _ => return Err(OpenError::Foreign),
        }
        transaction.commit()?;
        // Only now, since it changes the file. It takes a sync away from each commit.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        Ok(Store(connection))
    }

    /// # Errors
    ///
    /// SQLite's. What was not committed is rolled back.
    pub fn take(&mut self, order: &Order, terms: &Terms, now: u64) -> rusqlite::Result<Taken> {
        let transaction = self.begin(now)?;
        if let Some(known_for) = terms.keys_known_for {
            // The latest row: one that was taken after the key had been forgotten is the one that is known.
            let known = transaction
                .query_row(
                    "SELECT number, state, client_reference, request FROM deployments
                     WHERE key = ?1 AND received_at >= ?2 ORDER BY number DESC LIMIT 1",
                    (&order.key, instant(now.saturating_sub(known_for))),
                    |row| Ok((deployment(row)?, row.get::<_, String>(2)?, row.get::<_, String>(3)?)),
                )
                .optional()?;
            if let Some((deployment, client_reference, request)) = known {
                let is_same = client_reference == order.client_reference
                    && request.parse::<Value>().is_ok_and(|known| known == order.request);
                transaction.commit()?;
                return Ok(if is_same { Taken::Known(deployment) } else { Taken::Conflict });
            }
        }
        let deployment = transaction.query_row(
            "INSERT INTO deployments (client_reference, key, request, received_at, finish_at, outcome, state)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, iif(?5 > ?4, 'running', ?6)) RETURNING number, state",
            (
                &order.client_reference,
                &order.key,
                order.request.to_string(),
                instant(now),
                instant(now.saturating_add(terms.runs_for)),
                if terms.fails { "failed" } else { "succeeded" },
            ),
            deployment,
        )?;
        transaction.commit()?;
        Ok(Taken::New(deployment))
    }

    /// The latest deployment under this reference.
    ///
    /// # Errors
    ///
    /// SQLite's.
    pub fn find(&mut self, client_reference: &str, now: u64) -> rusqlite::Result<Option<Deployment>> {
        let transaction = self.begin(now)?;
        let found = latest(&transaction, client_reference)?;
        transaction.commit()?;
        Ok(found)
    }

    /// Cancels the latest deployment under this reference and answers its state after it; none if there is none.
    ///
    /// # Errors
    ///
    /// SQLite's. What was not committed is rolled back.
    pub fn cancel(
        &mut self,
        client_reference: &str,
        cancelling: Cancelling,
        now: u64,
    ) -> rusqlite::Result<Option<Deployment>> {
        let change = match cancelling {
            Cancelling::Stop => "state = 'cancelled'",
            Cancelling::OutrunLater => "outcome = 'succeeded'",
            Cancelling::OutrunNow => "outcome = 'succeeded', state = 'succeeded'",
        };
        let transaction = self.begin(now)?;
        transaction.execute(
            &format!(
                "UPDATE deployments SET {change} WHERE state = 'running'
                 AND number = (SELECT max(number) FROM deployments WHERE client_reference = ?1)"
            ),
            [client_reference],
        )?;
        let found = latest(&transaction, client_reference)?;
        transaction.commit()?;
        Ok(found)
    }

    /// How many deployments each reference has that are running or have succeeded.
    ///
    /// # Errors
    ///
    /// SQLite's.
    pub fn effects(&mut self, now: u64) -> rusqlite::Result<BTreeMap<String, u32>> {
        let transaction = self.begin(now)?;
        let sql = "SELECT client_reference, count(*) FROM deployments
                   WHERE state IN ('running', 'succeeded') GROUP BY 1";
        let effects =
            transaction.prepare(sql)?.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect::<Result<_, _>>()?;
        transaction.commit()?;
        Ok(effects)
    }

    /// Every transaction begins with what time has brought. Once stored, it stays, even if the clock steps back.
    fn begin(&mut self, now: u64) -> rusqlite::Result<Transaction<'_>> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        transaction.execute(
            "UPDATE deployments SET state = outcome WHERE state = 'running' AND finish_at <= ?1",
            [instant(now)],
        )?;
        Ok(transaction)
    }
}

fn latest(transaction: &Transaction<'_>, client_reference: &str) -> rusqlite::Result<Option<Deployment>> {
    let sql = "SELECT number, state FROM deployments WHERE client_reference = ?1 ORDER BY number DESC LIMIT 1";
    transaction.query_row(sql, [client_reference], deployment).optional()
}

/// A row that begins with its number and its state.
fn deployment(row: &Row<'_>) -> rusqlite::Result<Deployment> {
    let state = row.get(1)?;
    let detail = (state == State::Failed).then_some("It failed, as it was told to.");
    Ok(Deployment { id: format!("dep-{}", row.get::<_, i64>(0)?), state, detail })
}

/// SQLite's integers have a sign; what is too late to be written is as late as can be.
fn instant(milliseconds: u64) -> i64 {
    i64::try_from(milliseconds).unwrap_or(i64::MAX)
}

impl FromSql for State {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        match value.as_str()? {
            "running" => Ok(State::Running),
            "succeeded" => Ok(State::Succeeded),
            "failed" => Ok(State::Failed),
            "cancelled" => Ok(State::Cancelled),
            _ => Err(FromSqlError::InvalidType),
        }
    }
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        OpenError::Sqlite(error)
    }
}

impl Display for OpenError {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::Sqlite(error) => error.fmt(out),
            OpenError::Foreign => out.write_str("this is no store of this provider"),
        }
    }
}

impl Error for OpenError {}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that meets an error has failed")]
mod tests {
    use super::*;
    use serde_json::json;
    use tempfile::TempDir;

    const LONG: u64 = 1_000_000;

    fn store() -> (TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("provider.db")).unwrap();
        (folder, store)
    }

    fn order(key: &str, client_reference: &str) -> Order {
        let (key, client_reference) = (key.to_owned(), client_reference.to_owned());
        Order { key, client_reference, request: json!({ "service": "web" }) }
    }

    fn terms(keys_known_for: Option<u64>, runs_for: u64) -> Terms {
        Terms { keys_known_for, runs_for, fails: false }
    }

    fn deployment(id: &str, state: State) -> Deployment {
        Deployment { id: id.to_owned(), state, detail: None }
    }

    #[test]
    fn a_key_is_known_from_its_first_receipt_to_the_last_millisecond_of_its_time() {
        let (_folder, mut store) = store();
        let first = deployment("dep-1", State::Succeeded);
        let mut take = |now| store.take(&order("k", "r"), &terms(Some(100), 0), now).unwrap();

        assert_eq!(take(1_000), Taken::New(first.clone()));
        assert_eq!(take(1_060), Taken::Known(first.clone()));
        assert_eq!(take(1_100), Taken::Known(first.clone()));
        assert_eq!(take(900), Taken::Known(first), "the clock stepped back");
        assert_eq!(take(1_101), Taken::New(deployment("dep-2", State::Succeeded)));
        assert_eq!(take(1_102), Taken::Known(deployment("dep-2", State::Succeeded)));
        assert_eq!(store.effects(1_102).unwrap(), BTreeMap::from([("r".to_owned(), 2)]));
    }

    #[test]
    fn a_known_key_with_another_body_changes_nothing() {
        let (_folder, mut store) = store();
        store.take(&order("k", "r"), &terms(Some(LONG), 0), 0).unwrap();
        let other_request = Order { request: json!({ "service": "other" }), ..order("k", "r") };

        for other in [other_request, order("k", "s")] {
            assert_eq!(store.take(&other, &terms(Some(LONG), 0), 1).unwrap(), Taken::Conflict);
        }
        assert_eq!(store.effects(1).unwrap(), BTreeMap::from([("r".to_owned(), 1)]));
    }

    #[test]
    fn a_deployment_runs_until_its_time_and_what_it_became_stays_when_the_clock_steps_back() {
        let (_folder, mut store) = store();
        store.take(&order("k", "r"), &terms(None, 50), 1_000).unwrap();
        let mut state = |now| store.find("r", now).unwrap().unwrap().state;

        assert_eq!(state(1_049), State::Running);
        assert_eq!(state(1_050), State::Succeeded);
        assert_eq!(state(1_000), State::Succeeded);
        assert_eq!(store.find("s", 1_000).unwrap(), None);
    }

    #[test]
    fn what_runs_is_cancelled_or_outruns_it_and_what_is_finished_stays() {
        let (_folder, mut store) = store();
        for (reference, runs_for) in [("stopped", 50), ("later", 50), ("now", 50), ("finished", 0)] {
            store.take(&order(reference, reference), &terms(None, runs_for), 1_000).unwrap();
        }
        let mut cancel = |reference, how| store.cancel(reference, how, 1_010).unwrap().map(|found| found.state);

        assert_eq!(cancel("stopped", Cancelling::Stop), Some(State::Cancelled));
        assert_eq!(cancel("later", Cancelling::OutrunLater), Some(State::Running));
        assert_eq!(cancel("now", Cancelling::OutrunNow), Some(State::Succeeded));
        assert_eq!(cancel("finished", Cancelling::Stop), Some(State::Succeeded));
        assert_eq!(cancel("unknown", Cancelling::Stop), None);
        let effects = ["finished", "later", "now"].map(|reference| (reference.to_owned(), 1));
        assert_eq!(store.effects(1_050).unwrap(), BTreeMap::from(effects));
        assert_eq!(store.find("stopped", 1_050).unwrap().unwrap().state, State::Cancelled);
        assert_eq!(store.find("later", 1_050).unwrap().unwrap().state, State::Succeeded);
    }

    #[test]
    fn a_failed_deployment_counts_only_while_it_runs() {
        let (_folder, mut store) = store();
        store.take(&order("k", "r"), &Terms { fails: true, ..terms(None, 50) }, 1_000).unwrap();

        assert_eq!(store.effects(1_049).unwrap(), BTreeMap::from([("r".to_owned(), 1)]));
        assert_eq!(store.effects(1_050).unwrap(), BTreeMap::new());
        assert_eq!(store.find("r", 1_050).unwrap().unwrap().state, State::Failed);
    }

    #[test]
    fn a_database_of_another_program_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("other.db");
        Connection::open(&file).unwrap().execute_batch("CREATE TABLE other (x)").unwrap();
        let before = std::fs::read(&file).unwrap();

        assert!(matches!(Store::open(&file), Err(OpenError::Foreign)));
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }
}
