-- The ledger as a new file gets it. protocol/records describes its rows: a column that is added here is a member there,
-- and a test compares the two. storage/ledger_migrations.cc brings older files to the same.
-- Every fact the controller acts on stands here before it is acknowledged.
-- Times are seconds since the epoch (REAL). A NULL loss or held-out loss was NaN (SQLite has no NaN), a NULL grad_norm NaN or not said;
-- infinities are kept. Hashes are 16 hexadecimal digits (of the audit 64). `run` is runs.id everywhere.

CREATE TABLE runs (
  id            INTEGER PRIMARY KEY,
  name          TEXT NOT NULL,
  job_id        TEXT NOT NULL,
  registration  TEXT NOT NULL,              -- RunRegistration as JSON
  policy        TEXT NOT NULL,              -- TOML
  state         TEXT NOT NULL,              -- live, completed, stopped, failed, deleting
  registered_at REAL NOT NULL,
  finished_at   REAL,
  finished_step INTEGER,
  final_loss    REAL,
  train_seconds REAL,
  UNIQUE (name, job_id)
) STRICT;
CREATE INDEX runs_by_state ON runs (state);

CREATE TABLE faults (                       -- injected on purpose: the truth that decisions are judged by
  run         INTEGER NOT NULL REFERENCES runs (id),
  kind        TEXT NOT NULL,
  site        TEXT NOT NULL,
  start_step  INTEGER NOT NULL,
  end_step    INTEGER NOT NULL,             -- exclusive; 0 = never ends
  description TEXT NOT NULL
) STRICT;
CREATE INDEX faults_by_run ON faults (run);

CREATE TABLE attempts (
  run          INTEGER NOT NULL REFERENCES runs (id),
  attempt      INTEGER NOT NULL,
  base_step    INTEGER NOT NULL,            -- its first step is base_step + 1
  cause        TEXT NOT NULL,               -- start, restart, rollback
  plan_version INTEGER NOT NULL,
  started_at   REAL NOT NULL,
  fingerprint  TEXT,                        -- Fingerprint as JSON; NULL = the registration's
  host         TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run, attempt)
) STRICT, WITHOUT ROWID;

-- The process that trains a run, of those that say who they are.
CREATE TABLE trainers (
  run         INTEGER PRIMARY KEY REFERENCES runs (id),
  incarnation TEXT NOT NULL,
  started_at  REAL NOT NULL                 -- by the daemon's clock
) STRICT;

CREATE TABLE steps (
  run           INTEGER NOT NULL,
  attempt       INTEGER NOT NULL,
  step          INTEGER NOT NULL,
  plan_version  INTEGER NOT NULL,
  loss          REAL,
  grad_norm     REAL,
  learning_rate REAL NOT NULL,
  tokens        INTEGER NOT NULL,
  step_seconds  REAL NOT NULL,
  weights_hash  TEXT NOT NULL,
  reported_at   REAL NOT NULL,
  batch_hash    TEXT NOT NULL DEFAULT '',
  seq           INTEGER,                    -- of the event that this report is; NULL: it has a row in `events`
  cast_saturated REAL,                      -- NULL: NaN or not said
  cast_flushed  REAL,
  cast_peak     REAL,
  state_changed INTEGER,                    -- 1: masters or moments had changed since the update before
  PRIMARY KEY (run, attempt, step)
) STRICT, WITHOUT ROWID;

-- Sums over the steps of a run by how long they took, so that a start need not read every step, and so that they
-- outlive the steps (retention).
CREATE TABLE step_totals (
  run         INTEGER NOT NULL,
  seconds_max REAL NOT NULL,                -- upper bound of step_seconds, inclusive; Infinity for the rest
  steps       INTEGER NOT NULL,
  tokens      INTEGER NOT NULL,
  seconds     REAL NOT NULL,
  PRIMARY KEY (run, seconds_max)
) STRICT, WITHOUT ROWID;

CREATE TABLE checkpoints (
  run           INTEGER NOT NULL,
  attempt       INTEGER NOT NULL,
  step          INTEGER NOT NULL,
  uri           TEXT NOT NULL,
  plan_version  INTEGER NOT NULL,
  bytes         INTEGER NOT NULL,
  manifest_hash TEXT NOT NULL,
  weights_hash  TEXT NOT NULL,
  reported_at   REAL NOT NULL,
  verified_at   REAL,
  protected     INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (run, attempt, step)
) STRICT, WITHOUT ROWID;

CREATE INDEX checkpoints_by_uri ON checkpoints (run, uri);
CREATE INDEX checkpoints_verified ON checkpoints (run, verified_at, attempt, step) WHERE verified_at IS NOT NULL;
CREATE INDEX checkpoints_protected ON checkpoints (run, attempt, step) WHERE protected = 1;

CREATE TABLE plans (
  run        INTEGER NOT NULL,
  version    INTEGER NOT NULL,
  toml       TEXT NOT NULL,
  created_at REAL NOT NULL,
  PRIMARY KEY (run, version)
) STRICT, WITHOUT ROWID;

CREATE TABLE windows (
  run               INTEGER NOT NULL,
  window            INTEGER NOT NULL,
  kind              TEXT NOT NULL,          -- shadow, incident, probe, long
  attempt           INTEGER NOT NULL,
  start_step        INTEGER NOT NULL,
  steps             INTEGER NOT NULL,
  start_uri         TEXT NOT NULL,
  end_uri           TEXT NOT NULL,
  plan_version      INTEGER NOT NULL,
  state             TEXT NOT NULL,          -- open, quiet, alarm, skipped, failed
  gap               REAL,                   -- nats
  offset_loss       REAL,                   -- nats
  d_percent         REAL,
  tolerance_percent REAL,
  opened_at         REAL NOT NULL,
  closed_at         REAL,
  gap_error         REAL,                   -- nats, standard error over the held-out text
  rule              TEXT NOT NULL DEFAULT '', -- of the alarm: evidence, burst, ceiling, non_finite, a rival's name
  statistic         REAL,                   -- of the detector, and what it is an alarm from
  threshold         REAL,
  scale_percent     REAL,                   -- deviation of D in healthy windows, as known then
  null_percent      REAL,                   -- mean D that is no fault, as known then
  why               TEXT,                   -- it was skipped or failed
  PRIMARY KEY (run, window)
) STRICT, WITHOUT ROWID;

CREATE TABLE replays (
  run                INTEGER NOT NULL,
  replay             INTEGER NOT NULL,
  window             INTEGER NOT NULL,
  arm                TEXT NOT NULL,         -- bf16, same, plan, fakequant, bf16-perturbed, scores, eager
  plan               TEXT NOT NULL,         -- TOML for arm plan
  purpose            TEXT NOT NULL,         -- shadow, triage, attribution, probe, instrument
  evaluate_endpoints INTEGER NOT NULL,
  priority           INTEGER NOT NULL,
  state              TEXT NOT NULL,         -- queued, leased, done, failed, cancelled
  token              INTEGER NOT NULL,      -- of its newest lease; grows by one with each
  fail_reason        TEXT,
  ordered_at         REAL NOT NULL,
  finished_at        REAL,
  nudge              INTEGER NOT NULL DEFAULT 0,  -- seed of the nudge that the weights begin with; 0 = none
  avoid              TEXT NOT NULL DEFAULT '',    -- the verifier that is not to do it, if there is another
  on_trainer         INTEGER NOT NULL DEFAULT 0,  -- only the trainer itself can do it
  PRIMARY KEY (run, replay)
) STRICT, WITHOUT ROWID;
CREATE INDEX replays_by_window ON replays (run, window);
CREATE INDEX replays_queue ON replays (state, priority DESC, ordered_at, run, replay);

CREATE TABLE leases (
  id           INTEGER PRIMARY KEY,
  run          INTEGER NOT NULL,
  replay       INTEGER NOT NULL,
  token        INTEGER NOT NULL,
  verifier     TEXT NOT NULL,
  state        TEXT NOT NULL,               -- leased, completed, failed, expired, unsupported
  granted_at   REAL NOT NULL,
  heartbeat_at REAL NOT NULL,
  steps_done   INTEGER NOT NULL,
  reason       TEXT
) STRICT;
CREATE INDEX leases_by_replay ON leases (run, replay);
CREATE INDEX leases_live ON leases (state) WHERE state = 'leased';

CREATE TABLE results (
  run                  INTEGER NOT NULL,
  replay               INTEGER NOT NULL,
  token                INTEGER NOT NULL,
  verifier             TEXT NOT NULL,
  fingerprint          TEXT NOT NULL,       -- Fingerprint as JSON
  start_loss_bf16      REAL,
  start_loss_plan      REAL,
  run_end_loss_bf16    REAL,
  replay_end_loss_bf16 REAL,
  heldout_tokens       INTEGER NOT NULL,
  replay_seconds       REAL NOT NULL,
  eval_seconds         REAL NOT NULL,
  finished_at          REAL NOT NULL,
  gap_error            REAL,                -- nats
  start_loss_fakequant REAL,
  PRIMARY KEY (run, replay)
) STRICT, WITHOUT ROWID;

CREATE TABLE replay_steps (
  run          INTEGER NOT NULL,
  replay       INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  loss         REAL,
  grad_norm    REAL,
  weights_hash TEXT NOT NULL,
  batch_hash   TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (run, replay, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE scores (                       -- what an analysis of a checkpoint says of its GEMM sites
  run     INTEGER NOT NULL,
  replay  INTEGER NOT NULL,
  site    TEXT NOT NULL,
  phi     REAL,                             -- nats
  psi     REAL,                             -- nats
  sqnr_db REAL,
  PRIMARY KEY (run, replay, site)
) STRICT, WITHOUT ROWID;

CREATE TABLE quarantines (                  -- verifiers whose answers a run does not believe any more
  run      INTEGER NOT NULL,
  verifier TEXT NOT NULL,
  reason   TEXT NOT NULL,
  since    REAL NOT NULL,
  PRIMARY KEY (run, verifier)
) STRICT, WITHOUT ROWID;

CREATE TABLE decisions (
  run        INTEGER NOT NULL,
  decision   INTEGER NOT NULL,
  time       REAL NOT NULL,
  kind       TEXT NOT NULL,
  verdict    TEXT NOT NULL,
  action     TEXT NOT NULL,
  enforced   INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  step       INTEGER NOT NULL,
  window     INTEGER NOT NULL,
  sites      TEXT NOT NULL,                 -- JSON array
  sentence   TEXT NOT NULL,
  evidence   TEXT NOT NULL,                 -- JSON object
  event_seq  INTEGER NOT NULL,              -- the event it followed from
  PRIMARY KEY (run, decision)
) STRICT, WITHOUT ROWID;

CREATE TABLE directives (
  run             INTEGER NOT NULL,
  number          INTEGER NOT NULL,
  kind            TEXT NOT NULL,
  plan            TEXT NOT NULL,
  plan_version    INTEGER NOT NULL,
  to_step         INTEGER NOT NULL,
  checkpoint_uri  TEXT NOT NULL,
  reason          TEXT NOT NULL,
  state           TEXT NOT NULL,            -- pending, delivered, acknowledged, applied, rejected, expired
  issued_at       REAL NOT NULL,
  delivered_at    REAL,
  acknowledged_at REAL,
  ended_at        REAL,
  applied_attempt INTEGER,
  applied_step    INTEGER,
  reject_reason   TEXT,                     -- why it was rejected or has expired
  PRIMARY KEY (run, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE overrides (                    -- what operators asked for and the core took
  run        INTEGER NOT NULL,
  override   INTEGER NOT NULL,              -- 1, 2, ...
  kind       TEXT NOT NULL,                 -- pause, resume, stop, checkpoint_now, set_plan, silence, mode
  plan       TEXT NOT NULL,                 -- TOML for kind set_plan
  mode       TEXT NOT NULL,                 -- for kind mode
  owner      TEXT NOT NULL,
  reason     TEXT NOT NULL,
  asked_at   REAL NOT NULL,
  expires_at REAL,                          -- NULL = does not expire
  decision   INTEGER NOT NULL,              -- where it stands in `decisions`
  directive  INTEGER,                       -- issued at once; NULL = none
  PRIMARY KEY (run, override)
) STRICT, WITHOUT ROWID;

CREATE TABLE notices (                      -- what trainers want people to know; no decision rests on it
  run          INTEGER NOT NULL,
  notice       INTEGER NOT NULL,            -- 1, 2, ...
  attempt      INTEGER NOT NULL,
  step         INTEGER NOT NULL,            -- newest finished step then
  kind         TEXT NOT NULL,               -- checkpoint_failed, reports_dropped, plan_without_controller, data_mismatch, gradient_mismatch; gnomond's own: ecc_errors, ...
  text         TEXT NOT NULL,
  plan_version INTEGER NOT NULL,            -- plan_without_controller: a row of `plans`; else 0
  noticed_at   REAL NOT NULL,               -- by the trainer's clock
  reported_at  REAL NOT NULL,
  PRIMARY KEY (run, notice),
  UNIQUE (run, kind, attempt, step, noticed_at, text)
) STRICT, WITHOUT ROWID;

CREATE TABLE statistics_steps (             -- steps whose tensors were looked at; at most the newest 2,000 of a run
  run          INTEGER NOT NULL,
  attempt      INTEGER NOT NULL,
  step         INTEGER NOT NULL,
  plan_version INTEGER NOT NULL,
  measured_at  REAL NOT NULL,               -- by the trainer's clock
  reported_at  REAL NOT NULL,
  PRIMARY KEY (run, attempt, step)
) STRICT, WITHOUT ROWID;

CREATE TABLE statistics (                   -- of a tensor (gemm and recipe empty), or of rounding it for a GEMM
  run        INTEGER NOT NULL,
  attempt    INTEGER NOT NULL,
  step       INTEGER NOT NULL,
  site       TEXT NOT NULL,
  tensor     TEXT NOT NULL,                 -- input, weight, gradient, output
  gemm       TEXT NOT NULL,                 -- fprop, dgrad, wgrad
  recipe     TEXT NOT NULL,
  in_use     INTEGER NOT NULL,              -- 0 = what if
  amax       REAL,
  kurtosis   REAL,
  underflow  REAL,                          -- shares
  saturation REAL,
  sqnr_db    REAL,
  body       TEXT NOT NULL,                 -- the StatisticsRow with all its numbers, JSON
  PRIMARY KEY (run, attempt, step, site, tensor, gemm, recipe, in_use)
) STRICT, WITHOUT ROWID;

CREATE TABLE device_health (                -- what the run's GPU said of itself: the newest of ten seconds, at most 20,000 of a run
  run             INTEGER NOT NULL,
  sample          INTEGER NOT NULL,         -- 1, 2, ...
  attempt         INTEGER NOT NULL,
  step            INTEGER NOT NULL,         -- whose report carried it
  host            TEXT NOT NULL,            -- where rank 0 ran
  device          TEXT NOT NULL,            -- PCI bus id
  sampled_at      REAL NOT NULL,            -- by the trainer's clock
  reported_at     REAL NOT NULL,
  ecc_uncorrected INTEGER,                  -- errors since the driver was loaded; NULL = not said
  ecc_told        INTEGER,                  -- of these, those that were there at first or that a notice told of
  body            TEXT NOT NULL,            -- DeviceHealth as JSON
  PRIMARY KEY (run, sample)
) STRICT, WITHOUT ROWID;

-- What the decision core heard, numbered by `seq`. The reports of steps are in `steps`, with their number where each came
-- after all others of its run; a step that came late stands here by its key.
CREATE TABLE events (
  run     INTEGER NOT NULL,
  seq     INTEGER NOT NULL,
  time    REAL NOT NULL,
  type    TEXT NOT NULL,
  attempt INTEGER,
  step    INTEGER,
  body    TEXT,                             -- JSON; NULL for a step_reported whose numbers are in `steps`
  PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE decision_state (               -- the core's state after event `seq`; later ones are step reports without effects
  run  INTEGER PRIMARY KEY,
  seq  INTEGER NOT NULL,
  body TEXT NOT NULL
) STRICT;

-- What /v1/events streams, numbered over all runs without gaps, so that a client can go on where it was cut off.
-- Rows older than a week are deleted, but never the newest one: its number is what the next one follows.
CREATE TABLE stream (
  id   INTEGER PRIMARY KEY,
  time REAL NOT NULL,
  run  INTEGER NOT NULL,
  type TEXT NOT NULL,                       -- run, window, decision, directive, notice, override, run_deleted
  body TEXT NOT NULL                        -- JSON object
) STRICT;

-- What receivers of notifications (docs/notifications.md) are still to be told: a row for each receiver, written with what
-- it tells of. It goes when the receiver has it or when it is given up. Messages of a run go out in the order of `id`.
CREATE TABLE outbox (
  id          INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice: a row in flight may be deleted meanwhile
  receiver    TEXT NOT NULL,                -- by its name in the configuration
  run         INTEGER NOT NULL,
  kind        TEXT NOT NULL,                -- controller/notify/alert.h
  delivery    TEXT NOT NULL,                -- 32 hexadecimal digits: by what a receiver knows a message that comes again
  alert       TEXT NOT NULL,                -- JSON object
  queued_at   REAL NOT NULL,
  tries       INTEGER NOT NULL DEFAULT 0,   -- that failed
  next_try_at REAL,                         -- NULL = at once
  last_error  TEXT
) STRICT;
CREATE INDEX outbox_by_receiver ON outbox (receiver);
CREATE INDEX outbox_by_run ON outbox (receiver, run);

-- What has begun and not ended, so that its end is told under the same labels to those who heard of its beginning, and
-- receivers that are added hear of it; empty while there are no receivers.
CREATE TABLE conditions (
  run   INTEGER NOT NULL,
  kind  TEXT NOT NULL,                      -- controller/notify/alert.h
  since REAL NOT NULL,
  alert TEXT NOT NULL,                      -- JSON object, as it was told
  told  TEXT NOT NULL,                      -- JSON array of the receivers, by name, that were told of the beginning
  PRIMARY KEY (run, kind)
) STRICT, WITHOUT ROWID;

-- For people: what should not have happened (conflicting repeats, stale tokens, late acks) and what a person changed.
-- A chain: storage/ledger_audit.h says what each hash covers, and `gnomon audit verify` follows it. Rows are appended,
-- never changed or deleted.
CREATE TABLE audit (
  id        INTEGER PRIMARY KEY,
  time      REAL NOT NULL,
  run       INTEGER,
  what      TEXT NOT NULL,                  -- conflicting_step, stale_lease, override, ...
  detail    TEXT NOT NULL,
  principal TEXT NOT NULL,                  -- who asked; empty = gnomond itself
  hash      TEXT NOT NULL                   -- SHA-256 over the hash before and this row, 64 digits
) STRICT;
CREATE INDEX audit_by_run ON audit (run);
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit log are never changed'); END;
CREATE TRIGGER audit_is_not_deleted BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'rows of the audit log are never deleted'); END;
CREATE TRIGGER audit_is_appended BEFORE INSERT ON audit WHEN NEW.id <= (SELECT max(id) FROM audit)
BEGIN SELECT RAISE(ABORT, 'rows of the audit log are only appended'); END;

CREATE TABLE readiness (                    -- what /readyz writes to know that the ledger can be written
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  checked_at REAL NOT NULL
) STRICT;
