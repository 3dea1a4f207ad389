-- Each row names the operation that made it what it is. The foreign key is deferred to the commit, since the receipt is
-- inserted after the effect: SQLite commits no effect without its receipt.

CREATE TABLE notes (
  note_id      TEXT    NOT NULL PRIMARY KEY,  -- UUID v7
  workspace    TEXT    NOT NULL,
  body         TEXT    NOT NULL,              -- 1 to 10,000 characters
  created_at   INTEGER NOT NULL,              -- milliseconds since 1970-01-01T00:00:00Z
  operation_id TEXT    NOT NULL UNIQUE REFERENCES receipts DEFERRABLE INITIALLY DEFERRED
) STRICT, WITHOUT ROWID;

CREATE TABLE automations (
  automation_id    TEXT    NOT NULL PRIMARY KEY,  -- UUID v7
  workspace        TEXT    NOT NULL,
  interval_minutes INTEGER NOT NULL CHECK (interval_minutes BETWEEN 5 AND 1440),
  version          INTEGER NOT NULL CHECK (version BETWEEN 1 AND 4294967295),
  operation_id     TEXT    NOT NULL UNIQUE REFERENCES receipts DEFERRABLE INITIALLY DEFERRED  -- of the last change
) STRICT, WITHOUT ROWID;
