//! Operations whose effect is outside the database, of all workspaces, for an operator: a page of them, and how many there
//! are.

use super::operation::State;
use super::operations::{self, Status};
use crate::Timestamp;
use crate::refusal::Refusal;
use crate::storage::Database;
use rusqlite::Row;
use uuid::Uuid;

/// The most operations that one page has.
pub const MAX_PAGE: u32 = 1000;

/// An operation, and what its receipt says of it.
pub(crate) struct Listed {
    pub workspace: String,
    pub subject: String,
    pub started_at: Timestamp,
    pub status: Status,
}

/// The join keeps its order, which is that of the page.
macro_rules! page {
    ($which:literal) => {
        concat!(
            "SELECT workspace, subject, committed_at, ",
            operations::columns!(),
            " FROM operations o CROSS JOIN receipts r USING (operation_id) WHERE o.operation_id > ?1 ",
            $which,
            " ORDER BY o.operation_id LIMIT ?2"
        )
    };
}

/// At most `limit` operations, in one state or in any, whose ids come after `after`, in the order of their ids.
pub(crate) fn list(
    database: &Database,
    state: Option<State>,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<Listed>, Refusal> {
    const OF_ANY: &str = page!("");
    const OF_ONE: &str = page!("AND state = ?3");
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(Refusal::invalid_argument(format!("limit: {limit}, expected 1 to {MAX_PAGE}.")));
    }
    let after = after.map(Uuid::try_parse).transpose();
    let after = after.map_err(|_| Refusal::invalid_argument("after: expected the id of an operation, a UUID."))?;
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    let connection = database.connection();
    let page = match state {
        None => connection.prepare_cached(OF_ANY)?.query_map((after, limit), listed)?.collect::<Result<_, _>>()?,
        Some(state) => {
            connection.prepare_cached(OF_ONE)?.query_map((after, limit, state), listed)?.collect::<Result<_, _>>()?
        }
    };
    database.make_durable()?;
    Ok(page)
}

fn listed(row: &Row<'_>) -> rusqlite::Result<Listed> {
    Ok(Listed {
        workspace: row.get("workspace")?,
        subject: row.get("subject")?,
        started_at: row.get("committed_at")?,
        status: operations::status(row)?,
    })
}

/// How many operations there are in each state, in the order of [`State::ALL`].
pub(crate) fn count(database: &Database) -> Result<Vec<(State, u64)>, Refusal> {
    let mut statement = database.connection().prepare_cached("SELECT state, number FROM operation_counts")?;
    let mut counts = Vec::new();
    for row in statement.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?)))? {
        let (state, number) = row?;
        counts.push((state, u64::try_from(number).map_err(|_| Refusal::damaged())?));
    }
    counts.sort_unstable();
    if !counts.iter().map(|(state, _)| *state).eq(State::ALL) {
        return Err(Refusal::damaged());
    }
    database.make_durable()?;
    Ok(counts)
}
