-- With rowids, unlike most tables here: rows are long, and without rowids whole rows would stand in the tree's inner pages too
-- (https://sqlite.org/withoutrowid.html), so that it would be deeper. The unique index begins with what differs between calls, so
-- that comparing two entries mostly ends with their first bytes.
--
-- One row for each committed call: evidence that it happened, and its answer for whoever asks again.
CREATE TABLE receipts (
  operation_id    TEXT    NOT NULL PRIMARY KEY,  -- UUID v7, the same on every replay
  -- Whose key it is. Workspace and subject are the host's word, never an argument's.
  workspace       TEXT    NOT NULL,
  subject         TEXT    NOT NULL,
  tool            TEXT    NOT NULL,              -- the tool's first name: its revisions share their keys
  idempotency_key TEXT    NOT NULL,
  revision        TEXT    NOT NULL,              -- the name that was called
  arguments       TEXT    NOT NULL,              -- canonical JSON: another request under this key is refused
  result          TEXT    NOT NULL,              -- JSON, replayed unchanged
  resource_id     TEXT,                          -- what was created or changed
  committed_at    INTEGER NOT NULL,              -- milliseconds since 1970-01-01T00:00:00Z
  valid_until     INTEGER NOT NULL,              -- the same; later the key is refused, never taken as new
  UNIQUE (idempotency_key, workspace, subject, tool)
) STRICT;
