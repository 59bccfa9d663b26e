// One event at a time for the core, and the effects of the last one.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {

class TransitionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    policy_ = scenario_policy();
    policy_.instrument.every = 0;
    policy_.triage.pairs = 0;
    policy_.attribution.scores = false;
    handle(RunRegisteredEvent{"run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", site_names(2), 2,
                              10, 1000});
    handle(AttemptStarted{1, 0, "start", 1});
  }

  Outcome& handle(const Event& event) {
    last_ = decide(std::move(last_.state), event, policy_, 0);
    for (const OrderReplay& order : all<OrderReplay>()) {
      if (order.purpose == "shadow") shadows_[order.window] = order.replay;
    }
    return last_;
  }
  void checkpoint(int64_t step, int64_t attempt = 1, int64_t plan = 1) {
    handle(CheckpointCompleted{attempt, step, uri(step, attempt), plan});
  }
  static std::string uri(int64_t step, int64_t attempt = 1) {
    return fmt::format("a{}s{}", attempt, step);
  }

  // Answers a window's BF16 shadow, and what a second source is asked because of it.
  Outcome& shadow(int64_t window, double d_percent) {
    return answer(shadows_[window], window, d_percent);
  }
  // Answers the replay of that role that the open case waits for.
  Outcome& answer(const std::string& role, double d_percent) {
    const PendingReplay* replay = waiting(role);
    EXPECT_NE(replay, nullptr) << role;
    return replay != nullptr ? answer(replay->id, replay->window, d_percent) : last_;
  }
  Outcome& answer(int64_t replay, int64_t window, double d_percent) {
    ReplayFinished result;
    result.replay = replay;
    result.window = window;
    result.replay_end_loss_bf16 = 2.0 - 0.001 * static_cast<double>(window);
    result.run_end_loss_bf16 = *result.replay_end_loss_bf16 * (1 + d_percent / 100);
    result.fingerprint_equal = true;
    result.compared_steps = 20;
    result.verifier = "one:1";
    result.end_hash = fmt::format("bf16-of-{}", window);
    handle(result);
    return confirm(result);
  }
  int64_t id_of(const std::string& role) const {
    const PendingReplay* replay = waiting(role);
    return replay != nullptr ? replay->id : 0;
  }

  // An honest second source says the same. What follows counts as having followed the first answer.
  Outcome& confirm(ReplayFinished said) {
    const PendingReplay* asked = waiting("confirm", said.window);
    if (asked == nullptr) return last_;
    std::vector<Effect> effects = std::move(last_.effects);
    const std::string reason = std::move(last_.reason);
    said.replay = asked->id;
    said.verifier = "two:2";
    handle(said);
    last_.effects.insert(last_.effects.begin(), effects.begin(), effects.end());
    last_.reason = reason + last_.reason;
    return last_;
  }
  const PendingReplay* waiting(const std::string& role, int64_t window = 0) const {
    for (const PendingReplay& replay : state().replays) {
      if (replay.role == role && (window == 0 || replay.window == window)) return &replay;
    }
    return nullptr;
  }

  template <class Kind>
  std::vector<Kind> all() const {
    std::vector<Kind> found;
    for (const Effect& effect : last_.effects) {
      if (const auto* kind = std::get_if<Kind>(&effect)) found.push_back(*kind);
    }
    return found;
  }

  const State& state() const { return last_.state; }

  Policy policy_;
  Outcome last_;
  std::map<int64_t, int64_t> shadows_;  // replays by window
};

}  // namespace gnomon::decide
