#include "tests/decide/invariants.h"

#include <gtest/gtest.h>

namespace gnomon::decide {

void Invariants::check_effect(const Effect& effect, const Policy& policy) {
  if (const auto* open = std::get_if<OpenWindow>(&effect)) {
    EXPECT_EQ(open->window, ++last_window_);
    EXPECT_GT(open->steps, 0);
    EXPECT_FALSE(open->start_uri.empty());
    open_[open->window] = {open->start_uri, open->end_uri};
  } else if (const auto* order = std::get_if<OrderReplay>(&effect)) {
    EXPECT_EQ(order->replay, ++last_replay_);
    EXPECT_TRUE(open_.contains(order->window)) << "a replay of a window that is not open";
    EXPECT_EQ(order->arm == "plan", !order->plan.empty());
    EXPECT_FALSE(ended_) << "work was ordered after the run's end";
  } else if (const auto* close = std::get_if<CloseWindow>(&effect)) {
    EXPECT_EQ(open_.erase(close->window), 1u)
        << "window " << close->window << " closed twice or never opened";
    if (close->outcome == "alarm") alarms_ += 1;
  } else if (const auto* verified = std::get_if<MarkVerified>(&effect)) {
    verified_step_ = verified->step;
  } else if (const auto* directive = std::get_if<IssueDirective>(&effect)) {
    EXPECT_EQ(directive->number, ++last_directive_);
    EXPECT_FALSE(ended_) << "a directive after the run's end";
    EXPECT_EQ(policy.mode, Mode::kEnforce);
    EXPECT_TRUE(announced_ || refusals_ > 0) << "a directive that no decision announced";
    EXPECT_TRUE(alarms_ > 0 || passes_ > 0 || refusals_ > 0) << "an action without evidence";
    EXPECT_EQ(directive->kind == "rollback", !directive->checkpoint_uri.empty());
    EXPECT_EQ(directive->kind == "pause", directive->plan.empty());
    announced_ = false;
    alarms_ = passes_ = refusals_ = 0;
  } else if (const auto* decision = std::get_if<RecordDecision>(&effect)) {
    EXPECT_EQ(decision->decision, ++last_decision_);
    EXPECT_FALSE(decision->sentence.empty());
    EXPECT_EQ(decision->evidence.front(), '{');
    if (decision->kind == "alarm") alarms_ += 1;
    if (decision->kind == "probe" &&
        decision->evidence.find("\"passed\":true") != std::string::npos)
      passes_ += 1;
    if (decision->sentence.find("refused directive") != std::string::npos) refusals_ += 1;
    if (decision->action != "none" && decision->enforced) announced_ = true;
    if (decision->verdict == "generic_spike" || decision->verdict == "transient_fault") {
      EXPECT_TRUE(decision->sites.empty()) << "FP8 sites blamed for " << decision->verdict;
    }
  } else if (const auto* protect = std::get_if<ProtectCheckpoints>(&effect)) {
    protected_ = std::set<std::string>(protect->uris.begin(), protect->uris.end());
  }
}

void Invariants::check(const Event& event, const Outcome& outcome, const Policy& policy) {
  // A run that has ended may only close what is open, until it goes on.
  if (std::holds_alternative<AttemptStarted>(event) && !outcome.state.ended) ended_ = false;
  for (const Effect& effect : outcome.effects) check_effect(effect, policy);
  if (std::holds_alternative<RunEnded>(event) && outcome.state.ended) ended_ = true;
  const State& s = outcome.state;
  EXPECT_EQ(s.windows.size(), open_.size());
  EXPECT_LE(static_cast<int>(s.windows.size()), policy.window.open_max + 1);
  EXPECT_LE(s.checkpoints.size(), 64u);
  EXPECT_LE(s.quiet_ends.size(), 64u);
  EXPECT_LE(s.plans.size(), 64u);
  EXPECT_LE(static_cast<int>(s.spikes.recent.size()), policy.detector.spike_history);
  EXPECT_LE(static_cast<int>(s.replays.size()),
            2 * (policy.window.open_max + 1) + policy.attribution.parallel + 2);
  for (const auto& [id, window] : open_) {
    EXPECT_TRUE(protected_.contains(window.start_uri)) << "window " << id << " may lose its start";
    EXPECT_TRUE(window.end_uri.empty() || protected_.contains(window.end_uri))
        << "window " << id << " may lose its end";
  }
  EXPECT_TRUE(!s.last_verified || protected_.contains(s.last_verified->uri));
}

}  // namespace gnomon::decide
