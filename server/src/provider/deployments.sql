-- One row for each deployment that was taken. No row is ever removed or taken back: they are what is counted.
CREATE TABLE deployments (
  number           INTEGER PRIMARY KEY,     -- grows in the order of taking; the id is dep-NUMBER
  client_reference TEXT    NOT NULL,        -- not unique: a second row of it is what a worker must never cause
  key              TEXT    NOT NULL,        -- the Idempotency-Key; not unique, since keys are forgotten
  request          TEXT    NOT NULL,        -- a JSON object
  received_at      INTEGER NOT NULL,        -- milliseconds since 1970-01-01T00:00:00Z
  finish_at        INTEGER NOT NULL,        -- the same: when `running` becomes `outcome`
  outcome          TEXT    NOT NULL CHECK (outcome IN ('succeeded', 'failed')),
  state            TEXT    NOT NULL CHECK (state IN ('running', 'succeeded', 'failed', 'cancelled'))
) STRICT;

CREATE INDEX deployments_by_key ON deployments (key);
CREATE INDEX deployments_by_reference ON deployments (client_reference);
CREATE INDEX deployments_that_run ON deployments (finish_at) WHERE state = 'running';
