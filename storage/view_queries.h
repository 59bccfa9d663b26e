// The SQL behind every list and view, in one place: a test asks SQLite how it would answer each and
// refuses those that would read more of a history than they show. Statements are kept by their
// text, so these are literals. storage/ledger_migrations.cc has the indexes made
// for them.
#pragma once

#include <array>

namespace gnomon::views {

// Parameters: the run above which the list begins, how many, and a filter.
inline constexpr const char* kRuns = "SELECT id FROM runs WHERE id > ?1 ORDER BY id LIMIT ?2";
inline constexpr const char* kRunsInState =
    "SELECT id FROM runs WHERE state = ?3 AND id > ?1 ORDER BY id LIMIT ?2";
inline constexpr const char* kRunsNamed =
    "SELECT id FROM runs WHERE name = ?3 AND id > ?1 AND (?4 = '' OR state = ?4) ORDER BY id LIMIT "
    "?2";

// The step up to which a run is verified: what a verified checkpoint stands on is, too, so that an
// attempt from an earlier step takes back only what came after that.
#define GNOMON_VERIFIED_STEP(run)                                                              \
  "(SELECT min(c.step, coalesce((SELECT min(b.base_step) FROM attempts b WHERE b.run = c.run " \
  " AND b.attempt > c.attempt), c.step)) "                                                     \
  "FROM checkpoints c WHERE c.run = " run                                                      \
  " AND c.verified_at IS NOT NULL "                                                            \
  " ORDER BY c.verified_at DESC, c.attempt DESC, c.step DESC LIMIT 1)"

// The newest window that says something of the run as it stands: no probe, not skipped, and not of
// steps that a rollback has undone.
#define GNOMON_MEASURED_WINDOW(which)                                                           \
  "(SELECT w.window FROM windows w WHERE w.run = " which                                        \
  " AND w.d_percent IS NOT NULL AND w.kind <> 'probe' AND w.state <> 'skipped' AND NOT EXISTS " \
  "(SELECT 1 FROM attempts b WHERE b.run = w.run AND b.attempt > w.attempt AND b.base_step < "  \
  "w.start_step + w.steps) ORDER BY w.window DESC LIMIT 1)"

// Parameter: the run. Windows and decisions are numbered from 1 without gaps.
inline constexpr const char* kRunSummary =
    "SELECT r.id, 'run-' || r.id AS run, r.name, r.job_id, r.state, r.registered_at, "
    "r.finished_at, r.finished_step, r.final_loss, r.train_seconds, "
    "(SELECT max(attempt) FROM attempts a WHERE a.run = r.id) AS attempt, "
    "s.step, s.plan_version, s.loss, s.grad_norm, s.learning_rate, s.reported_at, "
    GNOMON_VERIFIED_STEP("r.id") " AS verified_step, "
    GNOMON_MEASURED_WINDOW("r.id") " AS measured_window, "
    "(SELECT coalesce(max(window), 0) FROM windows w WHERE w.run = r.id) AS windows, "
    "(SELECT coalesce(max(decision), 0) FROM decisions d WHERE d.run = r.id) AS decisions "
    "FROM runs r LEFT JOIN steps s ON s.run = r.id AND (s.attempt, s.step) = "
    "(SELECT t.attempt, t.step FROM steps t WHERE t.run = r.id ORDER BY t.attempt DESC, t.step "
    "DESC LIMIT 1) "
    "WHERE r.id = ?";
inline constexpr const char* kVerified =
    "SELECT " GNOMON_VERIFIED_STEP("?1") ", " GNOMON_MEASURED_WINDOW("?1");
#undef GNOMON_VERIFIED_STEP
#undef GNOMON_MEASURED_WINDOW
inline constexpr const char* kFaults = "SELECT * FROM faults WHERE run = ?";
inline constexpr const char* kAttempts = "SELECT * FROM attempts WHERE run = ? ORDER BY attempt";
inline constexpr const char* kNewestHealth =
    "SELECT * FROM device_health WHERE run = ? ORDER BY sample DESC LIMIT 1";
inline constexpr const char* kNewestPlan =
    "SELECT plan_version FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1";

// Parameters: the run, the number from which the list begins, how many.
inline constexpr const char* kWindows =
    "SELECT * FROM windows WHERE run = ? AND window >= ? ORDER BY window LIMIT ?";
// With what people should see beside a verdict on hardware: what its attempt's GPU had counted.
inline constexpr const char* kDecisions =
    "SELECT d.*, CASE WHEN d.verdict IN ('transient_fault', 'persistent_fault') THEN "
    "(SELECT n.text FROM notices n WHERE n.run = d.run AND n.kind = 'ecc_errors' AND n.attempt = "
    "d.attempt ORDER BY n.notice DESC LIMIT 1) END AS device_errors "
    "FROM decisions d WHERE d.run = ? AND d.decision >= ? ORDER BY d.decision LIMIT ?";
inline constexpr const char* kPlans =
    "SELECT * FROM plans WHERE run = ? AND version >= ? ORDER BY version LIMIT ?";
inline constexpr const char* kReplays =
    "SELECT r.*, x.verifier, x.fingerprint, x.start_loss_bf16, x.start_loss_plan, "
    "x.run_end_loss_bf16, x.replay_end_loss_bf16, x.heldout_tokens, x.replay_seconds, "
    "x.eval_seconds, x.start_loss_fakequant, x.gap_error "
    "FROM replays r LEFT JOIN results x ON x.run = r.run AND x.replay = r.replay "
    "WHERE r.run = ? AND r.replay >= ? ORDER BY r.replay LIMIT ?";
inline constexpr const char* kDirectives =
    "SELECT * FROM directives WHERE run = ? AND number >= ? ORDER BY number LIMIT ?";
inline constexpr const char* kDeviceHealth =
    "SELECT * FROM device_health WHERE run = ? AND sample >= ? ORDER BY sample LIMIT ?";
inline constexpr const char* kNotices =
    "SELECT * FROM notices WHERE run = ? AND notice >= ? ORDER BY notice LIMIT ?";
inline constexpr const char* kOverrides =
    "SELECT * FROM overrides WHERE run = ? AND override >= ? ORDER BY override LIMIT ?";
inline constexpr const char* kAudit =
    "SELECT * FROM audit WHERE run = ? AND id >= ? ORDER BY id LIMIT ?";

// The newest, oldest first. Parameters: how many, and the run.
inline constexpr const char* kAuditNewest =
    "SELECT * FROM audit WHERE id IN (SELECT id FROM audit ORDER BY id DESC LIMIT ?1) ORDER BY id";
inline constexpr const char* kAuditNewestOfRun =
    "SELECT * FROM audit WHERE id IN (SELECT id FROM audit WHERE run = ?2 ORDER BY id DESC LIMIT "
    "?1) ORDER BY id";

// Parameters: the run, the step from which on, the place behind which the list begins (two
// numbers), how many.
inline constexpr const char* kCheckpoints =
    "SELECT * FROM checkpoints WHERE run = ?1 AND step >= ?2 AND (attempt, step) > (?3, ?4) "
    "ORDER BY attempt, step LIMIT ?5";
// With the plus, and the index by name, a window's replays are looked up; without them SQLite reads
// all replays from the page's first window on for each window.
inline constexpr const char* kShadow =
    "SELECT r.window, w.attempt, s.step, s.loss FROM windows w "
    "CROSS JOIN replays r INDEXED BY replays_by_window ON r.run = w.run AND r.window = +w.window "
    "CROSS JOIN replay_steps s ON s.run = r.run AND s.replay = r.replay AND s.step >= ?2 "
    "WHERE w.run = ?1 AND w.window >= ?3 AND (w.window, s.step) > (?3, ?4) "
    "AND r.arm = 'bf16' AND r.purpose = 'shadow' AND r.state = 'done' "
    "ORDER BY w.window, s.step LIMIT ?5";

// Parameters: the number behind which the list begins, how many.
inline constexpr const char* kNotifications =
    "SELECT id, receiver, run, kind, delivery, queued_at, tries, next_try_at, last_error FROM "
    "outbox WHERE id > ? ORDER BY id LIMIT ?";

// Steps of one attempt. Parameters: run, attempt, first and last step, how many.
inline constexpr const char* kSteps =
    "SELECT * FROM steps WHERE run = ? AND attempt = ? AND step BETWEEN ? AND ? ORDER BY step "
    "LIMIT ?";
// Each so many: looked up one by one, not by reading all that lies between. Parameters: run,
// attempt, first and last step, how many, every.
inline constexpr const char* kStepsEvery =
    "WITH RECURSIVE picked (step) AS (SELECT ?3 UNION ALL SELECT step + ?6 FROM picked "
    "WHERE step + ?6 <= ?4) "
    "SELECT s.* FROM picked CROSS JOIN steps s ON s.run = ?1 AND s.attempt = ?2 AND s.step = "
    "picked.step LIMIT ?5";
// Parameters: run, attempt, a step.
inline constexpr const char* kFirstStepFrom =
    "SELECT min(step) FROM steps WHERE run = ? AND attempt = ? AND step >= ?";
inline constexpr const char* kLastStepTo =
    "SELECT max(step) FROM steps WHERE run = ? AND attempt = ? AND step <= ?";
inline constexpr const char* kAttemptNumbers =
    "SELECT attempt FROM attempts WHERE run = ? AND attempt >= ? ORDER BY attempt";

inline constexpr std::array kAll = {
    kRuns,          kRunsInState,   kRunsNamed,   kRunSummary,     kFaults,
    kAttempts,      kNewestHealth,  kNewestPlan,  kWindows,        kDecisions,
    kPlans,         kReplays,       kDirectives,  kDeviceHealth,   kNotices,
    kOverrides,     kAudit,         kCheckpoints, kShadow,         kSteps,
    kStepsEvery,    kFirstStepFrom, kLastStepTo,  kAttemptNumbers, kAuditNewestOfRun,
    kNotifications, kVerified,
};

}  // namespace gnomon::views
