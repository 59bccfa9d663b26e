#include "tests/decide/invariants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/words.h"

namespace gnomon::decide {

void Invariants::check_own_directive(const IssueDirective& directive) {
  EXPECT_FALSE(operator_plan_) << directive.kind << " while an operator's plan is in force";
  EXPECT_EQ(directive.kind == "rollback", !directive.checkpoint_uri.empty());
  const bool halts = directive.kind == "pause" || directive.kind == "stop";
  EXPECT_EQ(halts, directive.plan.empty()) << directive.kind << ", to " << purpose_;
  EXPECT_TRUE(halts || directive.kind == "rollback" || directive.kind == "set_plan");
  if (purpose_ == "restore") {
    EXPECT_EQ(directive.kind, "set_plan");
    EXPECT_TRUE(before_.restore_plan || before_.operator_plan ||
                !before_.expired_directives.empty())
        << "a way back from nowhere";
    return;
  }
  EXPECT_FALSE(muted_) << directive.kind << " while silenced";
  EXPECT_EQ(mode_, Mode::kEnforce);
  const bool held = before_.containment && before_.containment->rung == "hold";
  if (held && directive.kind == "pause") return;  // the same hold, of an attempt that begins
  EXPECT_TRUE(announced_ || refusals_ > 0) << "a directive that no decision announced";
  EXPECT_TRUE(alarms_ > 0 || passes_ > 0 || refusals_ > 0) << "an action without evidence";
  announced_ = false;
  alarms_ = passes_ = refusals_ = 0;
}

void Invariants::check_directive(const IssueDirective& directive) {
  EXPECT_EQ(directive.number, ++last_directive_);
  EXPECT_FALSE(ended_) << "a directive after the run's end";
  EXPECT_EQ(stop_, 0) << directive.kind << " after the order to stop, directive " << stop_;
  if (directive.kind == "stop") stop_ = directive.number;
  open_directives_.insert(directive.number);
  if (!overridden_ || directive.number == own_) return check_own_directive(directive);
  EXPECT_TRUE(override_said_) << "an order that no decision tells of";
  EXPECT_EQ(directive.kind == "set_plan", !directive.plan.empty());
  override_said_ = false;
}

void Invariants::check_effect(const Effect& effect) {
  if (const auto* open = std::get_if<OpenWindow>(&effect)) {
    EXPECT_EQ(open->window, ++last_window_);
    EXPECT_GT(open->steps, 0);
    EXPECT_FALSE(open->start_uri.empty());
    open_[open->window] = {open->start_uri, open->end_uri};
  } else if (const auto* order = std::get_if<OrderReplay>(&effect)) {
    EXPECT_EQ(order->replay, ++last_replay_);
    EXPECT_TRUE(open_.contains(order->window)) << "a replay of a window that is not open";
    const bool may_have_plan = order->arm == "fakequant" || order->arm == "scores";
    EXPECT_TRUE(may_have_plan || (order->arm == "plan") == !order->plan.empty());
    EXPECT_FALSE(ended_) << "work was ordered after the run's end";
    const bool measures = order->purpose == "shadow" || order->purpose == "instrument";
    EXPECT_TRUE(measures || !(muted_ || operator_plan_))
        << order->purpose << " although nothing may follow";
  } else if (const auto* show = std::get_if<ShowWindow>(&effect)) {
    EXPECT_TRUE(open_.contains(show->numbers.window)) << "a window that is not open is shown so";
    EXPECT_TRUE(show->numbers.d_percent);
    EXPECT_EQ(show->numbers.outcome, "open");
  } else if (const auto* close = std::get_if<CloseWindow>(&effect)) {
    const bool not_judged = close->outcome == "skipped" || close->outcome == "failed";
    EXPECT_EQ(!close->why.value_or("").empty(), not_judged) << close->outcome.text();
    EXPECT_EQ(open_.erase(close->window), 1u)
        << "window " << close->window << " closed twice or never opened";
    if (close->outcome == "alarm") alarms_ += 1;
  } else if (const auto* verified = std::get_if<MarkVerified>(&effect)) {
    verified_step_ = verified->step;
  } else if (const auto* directive = std::get_if<IssueDirective>(&effect)) {
    check_directive(*directive);
  } else if (const auto* end = std::get_if<EndDirective>(&effect)) {
    EXPECT_EQ(end->state, "expired");
    EXPECT_FALSE(end->reason.empty());
    EXPECT_EQ(open_directives_.erase(end->number), 1u)
        << "directive " << end->number << " ended twice or never issued";
    if (end->number == stop_) stop_ = 0;
  } else if (const auto* decision = std::get_if<RecordDecision>(&effect)) {
    EXPECT_EQ(decision->decision, ++last_decision_);
    EXPECT_FALSE(decision->sentence.empty());
    EXPECT_EQ(decision->evidence.front(), '{');
    if (decision->kind == "alarm") alarms_ += 1;
    if (decision->kind == "override") override_said_ = true;
    if (decision->kind == "probe" &&
        decision->evidence.find("\"passed\":true") != std::string::npos)
      passes_ += 1;
    if (decision->sentence.find("refused directive") != std::string::npos) refusals_ += 1;
    if (decision->sentence.find("verified by nobody") != std::string::npos) refusals_ += 1;
    if (decision->sentence.find("the policy wants it") != std::string::npos) refusals_ += 1;
    if (decision->sentence.find("it has expired") != std::string::npos) refusals_ += 1;
    if (decision->sentence.find("not do what it says") != std::string::npos) refusals_ += 1;
    if (decision->action != "none" && decision->enforced) announced_ = true;
    if (decision->verdict == "generic_spike" || decision->verdict == "transient_fault") {
      EXPECT_TRUE(decision->sites.empty()) << "FP8 sites blamed for " << decision->verdict;
    }
  } else if (const auto* protect = std::get_if<ProtectCheckpoints>(&effect)) {
    protected_ = std::set<std::string>(protect->uris.begin(), protect->uris.end());
  }
}

// Every directive that was issued and has not ended is known to the state, and no other.
void Invariants::check_open_directives(const Event& event, const State& after) {
  const auto* changed = std::get_if<DirectiveChanged>(&event);
  if (changed != nullptr && (changed->state == "applied" || changed->state == "rejected")) {
    open_directives_.erase(changed->number);
  }
  const auto* attempt = std::get_if<AttemptStarted>(&event);
  if (attempt != nullptr && attempt->cause == "rollback" && before_.directive &&
      before_.directive->to_step == attempt->base_step &&
      (!after.directive || after.directive->number != before_.directive->number)) {
    open_directives_.erase(before_.directive->number);  // the attempt is the answer
  }
  std::set<int64_t> known;
  std::multiset<std::string> kinds;
  if (after.directive) known.insert(after.directive->number);
  for (const PendingDirective& open : after.operator_directives) {
    known.insert(open.number);
    kinds.insert(open.kind);
  }
  EXPECT_EQ(open_directives_, known);
  EXPECT_LE(kinds.count("pause") + kinds.count("resume"), 1u);
  for (const char* kind : {"stop", "checkpoint_now", "set_plan"}) EXPECT_LE(kinds.count(kind), 1u);
  const bool trainer = std::any_of(after.replays.begin(), after.replays.end(),
                                   [](const PendingReplay& replay) { return replay.deadline > 0; });
  const bool waits = trainer || !known.empty() ||
                     (after.silence && after.silence->expires_at > 0) ||
                     (after.operator_plan && after.operator_plan->expires_at > 0) ||
                     (after.mode_override && after.mode_override->expires_at > 0);
  EXPECT_EQ(std::isfinite(next_deadline(after)), waits && !after.ended);
}

void Invariants::check_bounds(const State& s, const Policy& policy) {
  EXPECT_LE(static_cast<int>(s.windows.size()), policy.window.open_max + 6);
  EXPECT_LE(s.trust.transients.size(), 16u);
  EXPECT_LE(s.trust.verifiers.size(), 64u);
  EXPECT_LE(s.trust.quarantined.size(), 64u);
  EXPECT_LE(s.watch.gap.newest.size(), kGapNewestMax);
  EXPECT_TRUE(!s.investigation || s.investigation->evidence.answers.size() <= 32u);
  EXPECT_LE(s.money.points.size(), 96u);
  EXPECT_LE(s.checkpoints.size(), 64u);
  EXPECT_LE(s.quiet_ends.size(), 64u);
  EXPECT_LE(s.plans.size(), 64u);
  EXPECT_LE(s.operator_directives.size(), 4u);
  EXPECT_LE(s.expired_directives.size(), 8u);
  EXPECT_LE(s.older_verified.size(), 2u);
  EXPECT_LE(s.refused_bases.size(), 64u);
  EXPECT_LE(static_cast<int>(s.spikes.recent.size()), policy.detector.spike_history);
  EXPECT_LE(
      static_cast<int>(s.replays.size()),
      3 * (policy.window.open_max + 1) + policy.attribution.parallel + 2 * policy.triage.pairs + 4);
}

namespace {

// Nothing that was measured or asked can make the evidence, the scale or the account unusable.
void check_gap(const GapState& gap, const char* which) {
  for (const GapScale* scale : {&gap.scale, &gap.scale_before}) {
    EXPECT_TRUE(std::isfinite(scale->variance) && scale->variance >= 0) << which;
    EXPECT_TRUE(std::isfinite(scale->weight) && scale->weight >= 0) << which;
    EXPECT_TRUE(std::isfinite(scale->baseline_mean)) << which;
    EXPECT_TRUE(std::isfinite(scale->last_d.value_or(0))) << which;
    EXPECT_TRUE(std::isfinite(scale->null_percent.value_or(0))) << which;
  }
  for (const GapEvidence* evidence : {&gap.evidence, &gap.evidence_before}) {
    for (double sum : evidence->sums) EXPECT_TRUE(std::isfinite(sum) && sum >= 0) << which;
    EXPECT_TRUE(std::isfinite(evidence->previous_d.value_or(0))) << which;
    EXPECT_TRUE(std::isfinite(evidence->rival)) << which;
    for (double x : evidence->recent) EXPECT_TRUE(std::isfinite(x)) << which;
  }
}

}  // namespace

void Invariants::check_evidence(const State& s) {
  check_gap(s.watch.gap, "gap");
  check_gap(s.watch.long_gap, "long_gap");
  check_gap(s.watch.offset, "offset");
  EXPECT_TRUE(std::isfinite(s.watch.offset_level));
  EXPECT_TRUE(std::isfinite(s.watch.instrument.mean_square));
  for (double loss : s.spikes.recent) EXPECT_TRUE(std::isfinite(loss));
  const Account& account = s.money.account;
  for (double seconds : {account.trainer_verification_seconds, account.spare_verification_seconds,
                         account.hold_seconds, account.fp8.seconds, account.bf16.seconds}) {
    EXPECT_TRUE(std::isfinite(seconds) && seconds >= 0);
  }
  EXPECT_TRUE(std::isfinite(s.money.hazard.faults) && std::isfinite(s.money.hazard.steps));
}

// Whoever is named as a liar has no say any more: none of its windows is an alarm in that event.
void Invariants::check_named(const Outcome& outcome) const {
  std::set<std::string> named;
  for (const Effect& effect : outcome.effects) {
    if (const auto* named_now = std::get_if<QuarantineVerifier>(&effect))
      named.insert(named_now->verifier);
  }
  for (const Effect& effect : outcome.effects) {
    const auto* decision = std::get_if<RecordDecision>(&effect);
    if (decision == nullptr || decision->kind != "alarm") continue;
    for (const WindowState& window : before_.windows) {
      if (window.id != decision->window) continue;
      EXPECT_FALSE(named.contains(window.verifier))
          << "window " << window.id << " is an alarm by the word of " << window.verifier;
    }
  }
}

// A run that is not finite does not go on as if it were.
void Invariants::check_non_finite(const Event& event, const State& s) const {
  const bool new_step =
      std::holds_alternative<StepReported>(event) && s.newest_step > before_.newest_step;
  if (!new_step || !s.spikes.non_finite) return;
  const bool muted = s.silence || s.operator_plan || s.stopping || s.ended;
  const bool held = s.containment && s.containment->rung == "hold";
  const bool young = s.spikes.non_finite_losses < kNonFiniteLosses;
  const bool known = s.spikes.non_finite_shared || s.fault_reported || muted || held || young;
  EXPECT_TRUE(known || s.suspicion || s.investigation || s.directive)
      << "step " << s.newest_step << " is not finite, and nobody looks";
}

void Invariants::check(const Event& event, const Outcome& outcome, const Policy& policy) {
  const State& s = outcome.state;
  const auto* changed = std::get_if<DirectiveChanged>(&event);
  // A run that has ended may only close what is open, until it goes on.
  if (std::holds_alternative<AttemptStarted>(event) && !s.ended) ended_ = false;
  // A run that was told to stop hears nothing more until it begins again and is not to stop still.
  const bool refused = changed != nullptr && changed->state == "rejected";
  if (changed != nullptr && changed->number == stop_ && refused) stop_ = 0;
  if (s.attempt.number != before_.attempt.number && !open_directives_.contains(stop_)) stop_ = 0;
  overridden_ = std::holds_alternative<OperatorOverride>(event);
  muted_ = before_.silence && s.silence;
  operator_plan_ = before_.operator_plan && s.operator_plan;
  mode_ = mode_in_force(before_, policy);
  if (std::holds_alternative<RunRegisteredEvent>(event)) {
    const int64_t issued = std::ranges::count_if(outcome.effects, [](const Effect& effect) {
      return std::holds_alternative<IssueDirective>(effect);
    });
    last_directive_ = std::max(last_directive_, s.next_directive - 1 - issued);
  }
  purpose_ = s.directive ? s.directive->purpose : DirectivePurpose();
  own_ = s.directive ? s.directive->number : 0;
  override_said_ = false;
  for (const Effect& effect : outcome.effects) check_effect(effect);
  if (std::holds_alternative<RunEnded>(event) && s.ended) ended_ = true;
  check_open_directives(event, s);
  check_named(outcome);
  check_bounds(s, policy);
  check_evidence(s);
  check_non_finite(event, s);
  EXPECT_EQ(s.windows.size(), open_.size());
  for (const auto& [id, window] : open_) {
    EXPECT_TRUE(protected_.contains(window.start_uri)) << "window " << id << " may lose its start";
    EXPECT_TRUE(window.end_uri.empty() || protected_.contains(window.end_uri))
        << "window " << id << " may lose its end";
  }
  EXPECT_TRUE(!s.last_verified || protected_.contains(s.last_verified->uri));
  for (const KnownCheckpoint& older : s.older_verified) {
    EXPECT_TRUE(protected_.contains(older.uri)) << "a way back may be deleted";
    EXPECT_LT(older.step, s.last_verified ? s.last_verified->step : INT64_MAX);
  }
  before_ = s;
}

}  // namespace gnomon::decide
