#include "controller/decide/decide.h"
#include "protocol/record_json.h"

namespace gnomon::decide {

BOOST_DESCRIBE_STRUCT(AttemptStarted, (), (attempt, base_step, cause, plan_version, host))
BOOST_DESCRIBE_STRUCT(SiteScore, (), (site, phi, psi, sqnr_db))
BOOST_DESCRIBE_STRUCT(OtherBatch, (), (step, run, data))
BOOST_DESCRIBE_STRUCT(CheckpointCompleted, (), (attempt, step, uri, plan_version))
BOOST_DESCRIBE_STRUCT(ReplayFinished, (),
                      (replay, window, arm, purpose, fingerprint_equal, compared_steps,
                       first_mismatch_step, steps, losses, run_losses, start_loss_bf16,
                       start_loss_plan, run_end_loss_bf16, replay_end_loss_bf16, verifier,
                       fingerprint, on_trainer, first_other_batch_step, other_batches, end_hash,
                       gap_error, seconds, scores, step_seconds))
BOOST_DESCRIBE_STRUCT(ReplayFailed, (), (replay, window, arm, reason))
BOOST_DESCRIBE_STRUCT(DirectiveChanged, (), (number, state, attempt, step, reason))
BOOST_DESCRIBE_STRUCT(RunEnded, (), (outcome, step))
BOOST_DESCRIBE_STRUCT(Tick, (), ())
BOOST_DESCRIBE_STRUCT(OperatorOverride, (), (kind, plan, mode, owner, reason, expires_at))

BOOST_DESCRIBE_STRUCT(OpenWindow, (WindowSpan), ())
BOOST_DESCRIBE_STRUCT(OrderReplay, (ReplayOrder), ())
BOOST_DESCRIBE_STRUCT(CloseWindow, (GapNumbers), (window, outcome))
BOOST_DESCRIBE_STRUCT(ShowWindow, (), (numbers))
BOOST_DESCRIBE_STRUCT(MarkVerified, (), (attempt, step, uri))
BOOST_DESCRIBE_STRUCT(IssueDirective, (),
                      (number, kind, plan, plan_version, to_step, checkpoint_uri, reason))
BOOST_DESCRIBE_STRUCT(RecordDecision, (Decision), ())
BOOST_DESCRIBE_STRUCT(ProtectCheckpoints, (), (uris))
BOOST_DESCRIBE_STRUCT(EndDirective, (), (number, state, reason))
BOOST_DESCRIBE_STRUCT(QuarantineVerifier, (), (verifier, reason))

BOOST_DESCRIBE_STRUCT(KnownCheckpoint, (), (attempt, step, uri, plan_version))
BOOST_DESCRIBE_STRUCT(KnownPlan, (), (version, toml, bf16))
BOOST_DESCRIBE_STRUCT(PlanChange, (), (step, plan_version))
BOOST_DESCRIBE_STRUCT(RunFacts, (),
                      (name, base_plan, sites, layers, checkpoint_every, total_steps,
                       trainer_replays, tokens_per_step, trainer_confirms, capabilities))
BOOST_DESCRIBE_STRUCT(AttemptFacts, (), (number, base_step, plan_version, cause, host))
BOOST_DESCRIBE_STRUCT(Measurement, (),
                      (gap, offset, d_percent, reference, start_loss_plan, gap_error, unusable))
BOOST_DESCRIBE_STRUCT(GapSample, (),
                      (d_percent, floor_percent, steps, tokens_per_step, plan_version,
                       most_percent))
BOOST_DESCRIBE_STRUCT(GapScale, (),
                      (variance, weight, freedom, last_d, steps, tokens_per_step, plan_version,
                       baseline_windows, baseline_mean, null_percent, accepted_percent))
BOOST_DESCRIBE_STRUCT(GapEvidence, (), (sums, previous_d, burst_left, burst_level, rival, recent))
BOOST_DESCRIBE_STRUCT(GapState, (), (scale, evidence, scale_before, evidence_before, newest))
BOOST_DESCRIBE_STRUCT(GapVerdict, (),
                      (alarm, suspicious, rule, statistic, threshold, x, scale_percent,
                       null_percent, freedom, burst_left))
BOOST_DESCRIBE_STRUCT(Witness, (),
                      (verifier, on_trainer, measured, end_hash, fingerprint, fingerprint_equal,
                       suffers, other_batches, reports_percent))
BOOST_DESCRIBE_STRUCT(WindowState, (),
                      (id, kind, start, steps, end_uri, attempt, plan_version, called,
                       shadow_pending, probe_pending, instrument_pending, audit_pending, exact_by,
                       deferred, unsettled, outcome, why, measured, verifier, shadow_hash,
                       shadow_fingerprint_equal, judged, level_percent, witnesses, confirm_pending,
                       confirm_asked, confirmation, suspicion, odd, reports_percent, probe_answers))
BOOST_DESCRIBE_STRUCT(PendingReplay, (), (id, window, role, number, deadline, avoid, second))
BOOST_DESCRIBE_STRUCT(QuietEnd, (), (start_step, end))
BOOST_DESCRIBE_STRUCT(SpikeFinding, (),
                      (kind, step, loss, grad_norm, expected, deviation, threshold, rule))
BOOST_DESCRIBE_STRUCT(Suspicion, (), (finding, start, attempt, plan_version))
BOOST_DESCRIBE_STRUCT(Reproduction, (),
                      (reproduces, bitwise, first_mismatch_step, other_batch, sentence,
                       other_batches))
BOOST_DESCRIBE_STRUCT(SpikeComparison, (), (loss, non_finite, spikes))
BOOST_DESCRIBE_STRUCT(TriageAnswer, (),
                      (kind, seed, failed, disputed, verifier, reproduction, by_losses, spike,
                       start_loss_plan, end_loss, long_d_percent, long_steps, end_hash, on_trainer,
                       exact))
BOOST_DESCRIBE_STRUCT(TriageEvidence, (),
                      (trigger, measured, finding, chance_excluded, steps, level_percent, in_bf16,
                       confirmation, source, on_trainer, reports_percent, rests_on, answers,
                       seconds))
BOOST_DESCRIBE_STRUCT(InstrumentState, (),
                      (checks, mean_square, last_percent, windows_since, broken, disputed,
                       scale_agreed, scale_recorded, unanswered, offset_disputed))
BOOST_DESCRIBE_STRUCT(TransientFault, (), (host, step))
BOOST_DESCRIBE_STRUCT(AttributionSearch, (),
                      (candidates, guilty, known_bad, known_good, empty_unknown, asked, replays,
                       failures, ranked))
BOOST_DESCRIBE_STRUCT(RescueLook, (), (prefix, count, sum_percent, asked_again))
BOOST_DESCRIBE_STRUCT(Case, (),
                      (window, stage, evidence, far_window, fork_window, verdict, since_step,
                       scores, search, looks, left_percent, left_error_percent, rescued_by,
                       rescue_asked))
BOOST_DESCRIBE_STRUCT(PendingDirective, (),
                      (number, kind, purpose, plan_version, to_step, checkpoint_uri, non_finite,
                       deadline, steps_since, silence_recorded, attempt))
BOOST_DESCRIBE_STRUCT(StandingOverride, (), (owner, reason, expires_at, mode, plan, plan_version))
BOOST_DESCRIBE_STRUCT(Recovery, (), (rung, by_rollback, attempt, plan_version, to_step, harm_step))
BOOST_DESCRIBE_STRUCT(PassedProbe, (), (start_step, end_step, source, log_evidence))
BOOST_DESCRIBE_STRUCT(ProbeSeries, (),
                      (passed, unanswered, from_replay, nobody_else, others_cannot, trainer_cannot,
                       margin_percent))
BOOST_DESCRIBE_STRUCT(Containment, (),
                      (rung, sites, plan_version, recovered, quiet, probes, accepted_percent,
                       level_percent, stays))
BOOST_DESCRIBE_STRUCT(RollbackCount, (), (step, count))
BOOST_DESCRIBE_STRUCT(SpikeState, (),
                      (recent, first_count, first_max, silent_until, shared_step, non_finite,
                       non_finite_losses, non_finite_cases, non_finite_shared))
BOOST_DESCRIBE_STRUCT(SentinelSignal, (),
                      (count, level, slope, error, variance, covariance, innovation, up, down,
                       up_since, down_since))
BOOST_DESCRIBE_STRUCT(SentinelState, (), (loss, grad_norm, cast_saturated, cast_flushed, cast_peak))
BOOST_DESCRIBE_STRUCT(Health, (),
                      (batch_keys, repeats, repeats_recorded, collapse_recorded,
                       overfitting_recorded, state_changed_step, mean_loss))
BOOST_DESCRIBE_STRUCT(KeptShare, (), (verifier, windows, sum, weight, squares))
BOOST_DESCRIBE_STRUCT(Kept, (), (end_step, deviation, shares))
BOOST_DESCRIBE_STRUCT(Stability, (), (lowest, lowest_step, signs, calm, unstable_since, kept))
BOOST_DESCRIBE_STRUCT(EvidenceWindow, (),
                      (window, start_step, end_step, statistic, verifier, confirmed))
BOOST_DESCRIBE_STRUCT(ShakenState, (), (sums, plan_version))
BOOST_DESCRIBE_STRUCT(Watch, (),
                      (gap, long_gap, offset, offset_down, offset_level, offset_level_before,
                       offset_level_step, offset_windows, seen, long_seen, offset_seen,
                       offset_down_seen, instrument, burst_left, windows_judged, every, next_long,
                       long_start, unverified_windows, dirty_since, stability, shaken, sentinels,
                       audits_unusable, audit_in, called_start, called_step, health))
BOOST_DESCRIBE_STRUCT(VerifierRecord, (),
                      (verifier, windows, since_check, to_check, zeros, repeats, exact, was_exact,
                       recent, plan_version, last_start, last_reference, last_hash))
BOOST_DESCRIBE_STRUCT(Trust, (),
                      (verifiers, quarantined, transients, other_tokens, records, zeros_recorded))
BOOST_DESCRIBE_STRUCT(StepTimes, (), (steps, seconds, recent))
BOOST_DESCRIBE_STRUCT(Account, (),
                      (fp8, pinned, bf16, fp8_lost, pinned_lost, bf16_lost, trainer_replay_bf16,
                       spare_replay_fp8, spare_replay_bf16, verifications,
                       trainer_verification_seconds, spare_verification_seconds, spare_idle_seconds,
                       holds, hold_seconds, rollbacks, switches, switch_seconds, loss_gap_percent))
BOOST_DESCRIBE_STRUCT(Hazard, (), (prior_faults, prior_steps, steps, faults))
BOOST_DESCRIBE_STRUCT(CostPoint, (), (step, speedup, net, speedup_measured))
BOOST_DESCRIBE_STRUCT(Standing, (),
                      (condition, since, first_base, measured_step, measured_windows, last_window,
                       last_start, last_d_percent, unmeasured, harm, directives_unapplied, promised,
                       promised_step, reported_at, steps_at, due_step, undone_step, owed_step))
BOOST_DESCRIBE_STRUCT(Spending, (),
                      (trained, spent, spent_on_forks, overhead, dense_from, distance, last_start,
                       asked_every))
BOOST_DESCRIBE_STRUCT(Costs, (),
                      (account, hazard, spending, shadows, paused_since, last_step_at,
                       waited_seconds, switching, points, point_every))
BOOST_DESCRIBE_STRUCT(State, (),
                      (registered, ended, rounding_said, inherited, unknown_plan_said, paused,
                       stopping, run, attempt, newest_step, plan_version, next_window, next_replay,
                       next_directive, next_decision, next_plan_version, plans, plan_changes,
                       checkpoints, next_start, windows, replays, quiet_ends, last_verified,
                       older_verified, refused_bases, watch_from, protected_uris, watch, trust,
                       money, spikes, generic_spike_steps, suspicion, investigation, directive,
                       operator_directives, expired_directives, silence, mode_override,
                       operator_plan, restore_plan, recovery, containment, hold_due, fault_reported,
                       actions, rollbacks, wait_windows, quiet_since_return, standing))

namespace {

namespace json = boost::json;
using record_json::read_message;
using record_json::write_value;

constexpr auto kStored = record_json::Rules::kStored;

constexpr const char* kEventNames[] = {"run_registered",       "attempt_started", "step_reported",
                                       "checkpoint_completed", "replay_finished", "replay_failed",
                                       "directive_changed",    "run_ended",       "tick",
                                       "operator_override"};
static_assert(std::size(kEventNames) == std::variant_size_v<Event>);
constexpr const char* kEffectNames[] = {
    "open_window",         "order_replay",    "close_window",        "mark_verified",
    "issue_directive",     "record_decision", "protect_checkpoints", "end_directive",
    "quarantine_verifier", "show_window"};
static_assert(std::size(kEffectNames) == std::variant_size_v<Effect>);

}  // namespace

std::string event_type(const Event& event) { return kEventNames[event.index()]; }

std::string event_to_json(const Event& event) {
  return std::visit([](const auto& known) { return json::serialize(write_value(known)); }, event);
}

Event event_from_json(const std::string& type, const std::string& text) {
  const json::value value = parse_json_exactly(text);
  std::optional<Event> event;
  boost::mp11::mp_for_each<boost::mp11::mp_iota_c<std::variant_size_v<Event>>>([&](auto index) {
    if (type != kEventNames[index]) return;
    event = read_message<std::variant_alternative_t<index, Event>>(value, kStored);
  });
  if (!event) throw JsonError("type", type, "the name of an event, like \"step_reported\"");
  return *std::move(event);
}

// SQLite keeps no sign of a zero.
StepReported step_event(const StepNumbers& step, const std::optional<std::string>& body) {
  if (body) return std::get<StepReported>(event_from_json("step_reported", *body));
  StepReported event{step.attempt,    step.step,           step.plan_version,
                     step.loss + 0.0, step.grad_norm,      step.step_seconds + 0.0,
                     step.batch_hash, step.cast_saturated, step.cast_flushed,
                     step.cast_peak,  step.state_changed};
  if (event.grad_norm) *event.grad_norm += 0.0;
  return event;
}

std::string effect_type(const Effect& effect) { return kEffectNames[effect.index()]; }

std::string effect_to_json(const Effect& effect) {
  return std::visit([](const auto& known) { return json::serialize(write_value(known)); }, effect);
}

std::string state_to_json(const State& state) { return json::serialize(write_value(state)); }

State state_from_json(const std::string& text) {
  return read_message<State>(parse_json_exactly(text), record_json::Rules::kOtherVersion);
}

}  // namespace gnomon::decide
