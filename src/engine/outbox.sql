-- Effects outside the database, and what bounds the life of receipts.
--
-- One row for each operation whose effect is outside the database. It commits with its receipt; a worker sends it later.
CREATE TABLE operations (
  operation_id TEXT    NOT NULL PRIMARY KEY REFERENCES receipts DEFERRABLE INITIALLY DEFERRED,
  request      TEXT    NOT NULL,                     -- JSON for the provider; empty once the receipt is a tombstone
  state        TEXT    NOT NULL CHECK (state IN ('accepted', 'running', 'succeeded', 'failed', 'cancel-requested',
                                                 'cancelled', 'outcome-unknown')),
  since        INTEGER NOT NULL,                     -- when the state last changed; this and all times below are
                                                     -- milliseconds since 1970-01-01T00:00:00Z
  detail       TEXT    NOT NULL DEFAULT '',          -- why it failed or is unknown, or what keeps it
  resource_id  TEXT,                                 -- the provider's, once known
  -- Stored before the first attempt, and the same for all of them.
  provider_key TEXT,                                 -- UUID v5 of the operation's id
  contract     TEXT,                                 -- JSON: what the provider has been known to do since
  -- What is known.
  deadline     INTEGER NOT NULL,
  cancel       TEXT    NOT NULL DEFAULT 'no' CHECK (cancel IN ('no', 'asked', 'refused')),
  attempts     INTEGER NOT NULL DEFAULT 0,           -- sendings that may have reached the provider
  first_sent   INTEGER,                              -- none of them was sent before; 0 if that cannot be told
  last_sent    INTEGER,                              -- nor after; the end of time if that cannot be told
  is_there     INTEGER NOT NULL DEFAULT 0,           -- the provider has said that it has it
  rejected     INTEGER NOT NULL DEFAULT 0,           -- the provider has refused it for good
  fruitless    INTEGER NOT NULL DEFAULT 0,           -- attempts since the provider last said something new
  clock        INTEGER NOT NULL,                     -- the latest reading of the clock
  -- What is to be done.
  due          INTEGER,                              -- when; none if nothing is
  planned_at   INTEGER NOT NULL,                     -- the reading by which that was said
  attempt_id   TEXT,                                 -- what a worker has in hand
  CHECK (attempt_id IS NULL OR provider_key IS NOT NULL),
  CHECK ((first_sent IS NULL) = (last_sent IS NULL))
) STRICT, WITHOUT ROWID;

CREATE INDEX operations_by_due ON operations (due) WHERE due IS NOT NULL;
CREATE INDEX operations_by_planning ON operations (planned_at) WHERE due IS NOT NULL;

-- What an operator lists: the entries of a state are in the order of their ids, with which each ends. It costs a change of state
-- two or three pages more, and each operation 58 bytes. Without it a state that few are in is found by reading all: 0.1 s of a
-- million.
CREATE INDEX operations_by_state ON operations (state);

-- How many operations there are in each state, which is asked every few seconds: of a million, counting takes 0.3 s, along the
-- index 0.1 s, and this 10 us. It costs one page more in each commit that changes a state. `verify` counts anew.
CREATE TABLE operation_counts (
  state  TEXT    NOT NULL PRIMARY KEY,
  number INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

INSERT INTO operation_counts (state, number) VALUES
  ('accepted', 0), ('running', 0), ('succeeded', 0), ('failed', 0), ('cancel-requested', 0), ('cancelled', 0),
  ('outcome-unknown', 0);

CREATE TRIGGER operation_is_added AFTER INSERT ON operations BEGIN
  UPDATE operation_counts SET number = number + 1 WHERE state = new.state;
END;

CREATE TRIGGER operation_changes_state AFTER UPDATE OF state ON operations WHEN new.state <> old.state BEGIN
  UPDATE operation_counts SET number = number - 1 WHERE state = old.state;
  UPDATE operation_counts SET number = number + 1 WHERE state = new.state;
END;

CREATE TRIGGER operation_is_removed AFTER DELETE ON operations BEGIN
  UPDATE operation_counts SET number = number - 1 WHERE state = old.state;
END;

-- One row for each thing that a worker was asked to do, stored before it was handed out. Of fruitless questions only the
-- latest are kept.
CREATE TABLE attempts (
  number       INTEGER NOT NULL PRIMARY KEY,         -- in the order in which they were made, whatever the clock does
  attempt_id   TEXT    NOT NULL UNIQUE,              -- UUID v7
  operation_id TEXT    NOT NULL REFERENCES operations,
  step         TEXT    NOT NULL CHECK (step IN ('submit', 'lookup', 'cancel')),
  claimed_at   INTEGER NOT NULL,
  lease_until  INTEGER NOT NULL,
  settled_at   INTEGER,                              -- none: in hand, or its worker died
  observation  TEXT                                  -- what it saw
) STRICT;

CREATE INDEX attempts_by_operation ON attempts (operation_id);

-- What sweeping looks for. A tombstone has an empty request.
CREATE INDEX receipts_by_expiry ON receipts (valid_until) WHERE arguments <> '';

-- One row while the database is marked as restored from an older copy.
CREATE TABLE restored (
  since INTEGER NOT NULL
) STRICT;
