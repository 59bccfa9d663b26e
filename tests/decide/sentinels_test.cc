// Sentinels: what single steps say, and that they say it rarely of a healthy run.
#include "controller/decide/sentinels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/philox.h"
#include "controller/decide/decide.h"
#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

// Standard normal numbers of a stream.
double gaussian(uint64_t seed, int64_t at) {
  const auto words = philox(seed, 1, static_cast<uint64_t>(at));
  const double radius = std::sqrt(-2 * std::log(1 - philox_uniform(words[0])));
  return radius * std::cos(2 * M_PI * philox_uniform(words[1]));
}

// A language model's training: a loss that falls like a power of the step, and noise of a batch.
struct Training {
  int64_t steps = 20'000;
  double noise = 0.02;  // of the loss
  std::function<double(uint64_t seed, int64_t step)> error = gaussian;
  std::function<double(int64_t step)> rise = [](int64_t) { return 0.0; };    // of the loss, nats
  std::function<double(int64_t step)> factor = [](int64_t) { return 1.0; };  // of the gradient norm

  StepReported step(uint64_t seed, int64_t at) const {
    const double level = 1.7 + 9 * std::pow(static_cast<double>(at) + 20, -0.3);
    StepReported report{1, at, 1, 0, 0, 1};
    report.loss = level * (1 + noise * error(seed, at)) + rise(at);
    report.grad_norm = factor(at) * std::exp(0.2 * error(seed + 1000, at)) *
                       (0.3 + 3 / std::sqrt(static_cast<double>(at)));
    return report;
  }
};

std::vector<SentinelCall> calls(const Training& training, uint64_t seed = 1) {
  std::vector<SentinelCall> all;
  SentinelState state;
  for (int64_t at = 1; at <= training.steps; ++at) {
    if (auto call = observe_signals(state, training.step(seed, at))) all.push_back(*call);
  }
  return all;
}

int64_t count(const Training& training, int64_t runs) {
  int64_t found = 0;
  for (int64_t seed = 1; seed <= runs; ++seed)
    found += std::ssize(calls(training, static_cast<uint64_t>(seed)));
  return found;
}

// At most one false call in 20,000 steps is what the budget can bear without being felt.
TEST(SentinelTest, AHealthyRunIsRarelyCalled) { EXPECT_LE(count({}, 20), 4); }

TEST(SentinelTest, HeavyTailsAreNoChange) {
  Training training;
  training.error = [](uint64_t seed, int64_t at) {  // Student's t with 3 degrees of freedom
    const double chi = std::pow(gaussian(seed + 1, at), 2) + std::pow(gaussian(seed + 2, at), 2) +
                       std::pow(gaussian(seed + 3, at), 2);
    return gaussian(seed, at) / std::sqrt(chi / 3);
  };
  EXPECT_LE(count(training, 20), 20);
}

// Text in the order of a book: neighbouring batches are alike.
TEST(SentinelTest, BatchesThatAreAlikeAreNoChange) {
  Training training;
  training.error = [](uint64_t seed, int64_t at) {
    double sum = 0, weight = std::sqrt(1 - 0.6 * 0.6);
    for (int64_t back = 0; back < 24; ++back, weight *= 0.6)
      sum += weight * gaussian(seed, at - back);
    return sum;
  };
  EXPECT_LE(count(training, 6), 6);
}

TEST(SentinelTest, AWarmUpAndADecayOfTheLearningRateAreNoRise) {
  Training training;
  training.rise = [](int64_t at) {  // the last fifth of the run falls by 0.2 nats
    return at > 16'000 ? -0.2 * static_cast<double>(at - 16'000) / 4000 : 0.0;
  };
  int64_t rises = 0;
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const SentinelCall& call : calls(training, seed))
      rises += call.up && call.signal == "loss";
  }
  EXPECT_LE(rises, 2);
}

TEST(SentinelTest, ALossThatStaysHigherIsCalledFromItsFirstStepsOn) {
  Training training;
  training.rise = [](int64_t at) { return at >= 9000 ? 0.08 : 0.0; };  // 3.3%, 1.6 deviations
  const std::vector<SentinelCall> all = calls(training);
  ASSERT_FALSE(all.empty());
  EXPECT_EQ(all[0].signal, "loss");
  EXPECT_TRUE(all[0].up);
  EXPECT_NEAR(static_cast<double>(all[0].since_step), 9000, 12);
  EXPECT_GT(all[0].statistic, kSentinelCalls);
  EXPECT_GT(all[0].value, 0);
}

// Twelve of every sixty steps: windows that never meet them see nothing of it.
TEST(SentinelTest, WhatComesAndGoesIsCalled) {
  Training training;
  training.rise = [](int64_t at) { return at >= 9000 && at % 60 < 12 ? 0.15 : 0.0; };
  const std::vector<SentinelCall> all = calls(training);
  ASSERT_FALSE(all.empty());
  EXPECT_NEAR(static_cast<double>(all[0].since_step), 9000, 40);
}

TEST(SentinelTest, AGradientThatIsFlushedOrGrowsIsCalled) {
  for (const double factor : {0.6, 1.7}) {
    Training training;
    training.factor = [factor](int64_t at) { return at >= 9000 ? factor : 1.0; };
    const std::vector<SentinelCall> all = calls(training);
    ASSERT_FALSE(all.empty()) << factor;
    EXPECT_EQ(all[0].signal, "grad_norm");
    EXPECT_EQ(all[0].up, factor > 1);
    EXPECT_NEAR(static_cast<double>(all[0].since_step), 9000, 12);
    EXPECT_NEAR(all[0].forecast, 0.33, 0.03) << "a gradient norm, not its logarithm";
  }
}

TEST(SentinelTest, OneStepAloneDoesNotCall) {
  Training training;
  training.rise = [](int64_t at) { return at == 9000 ? 5.0 : 0.0; };
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    for (const SentinelCall& call : calls(training, seed))
      EXPECT_FALSE(call.since_step > 8900 && call.since_step < 9100);
  }
}

TEST(SentinelTest, StepsWithoutNumbersAreLeftOut) {
  SentinelState state;
  Training training;
  for (int64_t at = 1; at <= 1000; ++at) {
    StepReported report = training.step(1, at);
    if (at % 3 == 0) report.loss = std::nan("");
    if (at % 5 == 0) report.grad_norm = std::nullopt;
    if (at % 7 == 0) report.grad_norm = 0;
    EXPECT_FALSE(observe_signals(state, report)) << at;
  }
  EXPECT_LT(state.grad_norm.count, state.loss.count);
}

// ---- casts

// A run whose loss and gradient norm say nothing. Current scales: no value is clipped, the largest
// fits exactly, and some values always become zero.
struct Casts {
  double saturated = 1e-6;
  double flushed = 3e-4;
  double peak = 1;

  StepReported step(int64_t at) const {
    StepReported report{1, at, 1, 3, 1, 1};
    report.cast_saturated = saturated;
    report.cast_flushed = flushed;
    report.cast_peak = peak;
    return report;
  }
};

constexpr int64_t kChange = 1000;  // the first step that is another

// The first call of a run whose casts change once and for all.
std::optional<SentinelCall> call_after(const Casts& before, const Casts& after,
                                       int64_t steps = 5000) {
  SentinelState state;
  for (int64_t at = 1; at < kChange + steps; ++at) {
    if (auto call = observe_signals(state, (at < kChange ? before : after).step(at))) return call;
  }
  return std::nullopt;
}

TEST(CastSentinelTest, CastsThatStayTheSameAreNeverCalled) {
  EXPECT_FALSE(call_after({}, {}, 20'000));
}

TEST(CastSentinelTest, AValueFarBeyondTheFormatIsCalledWithinFiveSteps) {
  const auto call = call_after({}, {.peak = 64}, 5);
  ASSERT_TRUE(call);
  EXPECT_EQ(call->signal, "cast_peak");
  EXPECT_TRUE(call->up);
  EXPECT_EQ(call->since_step, kChange);
  EXPECT_EQ(call->value, 64);
  EXPECT_NEAR(call->forecast, 1, 0.02);
}

TEST(CastSentinelTest, OneTensorOfAThousandThatLosesHalfIsCalledWithinFiveSteps) {
  const double factor = std::exp(std::log(0.5 / 1e-6) / 1000);
  const auto saturated = call_after({}, {.saturated = 1e-6 * factor}, 5);
  ASSERT_TRUE(saturated);
  EXPECT_EQ(saturated->signal, "cast_saturated");
  EXPECT_EQ(saturated->since_step, kChange);
  const auto flushed = call_after({}, {.flushed = 3e-4 * factor}, 5);
  ASSERT_TRUE(flushed);
  EXPECT_EQ(flushed->signal, "cast_flushed");
  EXPECT_TRUE(flushed->up);
}

TEST(CastSentinelTest, APeakThatMovesByLessThanTwoPerCentIsNotCalled) {
  for (const double peak : {1.019, 0.981}) EXPECT_FALSE(call_after({}, {.peak = peak})) << peak;
  EXPECT_TRUE(call_after({}, {.peak = 1.06}));
}

// Delayed scales follow the tensors, which vary as gradients do.
TEST(CastSentinelTest, HealthyNoiseIsNotCalledInTwoHundredThousandSteps) {
  SentinelState state;
  for (int64_t at = 1; at <= 200'000; ++at) {
    const Casts casts{2e-5 * std::exp(0.2 * gaussian(11, at)),
                      3e-4 * std::exp(0.2 * gaussian(12, at)), std::exp(0.2 * gaussian(13, at))};
    const auto call = observe_signals(state, casts.step(at));
    ASSERT_FALSE(call) << call->signal << " at step " << at;
  }
  bool called = false;
  for (int64_t at = 200'001; at <= 200'006; ++at)
    called |= observe_signals(state, Casts{2e-5, 3e-4, 64}.step(at)).has_value();
  EXPECT_TRUE(called) << "noise does not hide 64 times what the format holds";
}

TEST(CastSentinelTest, AFallIsHarmOnlyWhereThePeakLeavesTheFormatUnused) {
  for (const Casts& fewer : {Casts{.flushed = 1e-4}, Casts{.peak = 0.5}}) {
    const auto call = call_after({}, fewer);
    ASSERT_TRUE(call);
    EXPECT_FALSE(call->up);
    EXPECT_FALSE(may_be_harm(*call)) << call->signal;
  }
  const auto call = call_after({}, {.peak = 0.1});
  ASSERT_TRUE(call);
  EXPECT_FALSE(call->up);
  EXPECT_TRUE(may_be_harm(*call));
}

// A scale that becomes too small: fewer values are clipped, and more become zero.
TEST(CastSentinelTest, AHarmlessCallHidesNoOther) {
  const auto call = call_after({.saturated = 1e-3}, {.saturated = 1e-6, .flushed = 0.1});
  ASSERT_TRUE(call);
  EXPECT_EQ(call->signal, "cast_flushed");
}

TEST(CastSentinelTest, NumbersThatAreNotThereAreLeftOut) {
  SentinelState state;
  for (int64_t at = 1; at <= 600; ++at) {
    StepReported report = Casts().step(at);
    if (at % 2 == 0) report.cast_peak = std::nullopt;
    if (at % 3 == 0) report.cast_saturated = std::nan("");
    if (at % 5 == 0) report.cast_flushed = 0;
    EXPECT_FALSE(observe_signals(state, report)) << at;
  }
  EXPECT_EQ(state.cast_peak.count, 300);
  EXPECT_EQ(state.cast_saturated.count, 400);
  EXPECT_EQ(state.cast_flushed.count, 480);
}

// Another plan casts other tensors, and another attempt may be another program.
TEST(CastSentinelTest, ANewPlanAndANewAttemptAreLearnedAnew) {
  const auto last_reason = [](int64_t plan, bool new_attempt) {
    Outcome now = decide({}, RunRegisteredEvent{"run", "", site_names(2), 2, 10, 2000}, {}, 0);
    now = decide(now.state, AttemptStarted{1, 0, "start", 1}, {}, 0);
    std::string reasons;
    for (int64_t at = 1; at <= kChange + 9; ++at) {
      StepReported report = Casts{.peak = at < kChange ? 1.0 : 64.0}.step(at);
      if (at == kChange && new_attempt)
        now = decide(now.state, AttemptStarted{2, at - 1, "restart", 1}, {}, 0);
      if (at >= kChange) report.plan_version = plan;
      if (at >= kChange && new_attempt) report.attempt = 2;
      now = decide(now.state, report, {}, 0);
      reasons += now.reason;
    }
    EXPECT_EQ(now.state.newest_step, kChange + 9);
    return reasons;
  };
  EXPECT_NE(last_reason(1, false).find("Casts to FP8 have changed since step 1000:"),
            std::string::npos);
  EXPECT_EQ(last_reason(2, false).find("Casts"), std::string::npos);
  EXPECT_EQ(last_reason(1, true).find("Casts"), std::string::npos);
}

// What other versions have written.
TEST(CastSentinelTest, StatesAndEventsOfOtherVersionsAreRead) {
  State state;
  for (int64_t at = 1; at <= 200; ++at) observe_signals(state.watch.sentinels, Casts().step(at));
  boost::json::value json = boost::json::parse(state_to_json(state));
  boost::json::object& sentinels = json.at("watch").at("sentinels").as_object();
  for (const char* name : {"cast_saturated", "cast_flushed", "cast_peak"})
    EXPECT_EQ(sentinels.erase(name), 1U) << name;
  sentinels["of_a_later_version"] = 1;
  const SentinelState read = state_from_json(boost::json::serialize(json)).watch.sentinels;
  EXPECT_EQ(read.loss.count, 200);
  EXPECT_EQ(read.cast_peak.count, 0);
  EXPECT_EQ(state_from_json(state_to_json(state)).watch.sentinels.cast_peak.count, 200);

  const std::string before =
      R"({"attempt":1,"step":2,"plan_version":1,"loss":3E0,"grad_norm":1E0,"seconds":1E0,)"
      R"("batch_hash":""})";
  EXPECT_EQ(event_to_json(event_from_json("step_reported", before)), before);
  const StepReported now = Casts{.peak = 64}.step(7);
  EXPECT_EQ(std::get<StepReported>(event_from_json("step_reported", event_to_json(now))).cast_peak,
            64);
}

TEST(CastSentinelTest, AnEventHasWhatTheReportSaid) {
  StepNumbers report{1, 2, 3, 4, 5};
  EXPECT_FALSE(step_event(report).cast_saturated || step_event(report).state_changed);
  report.state_changed = true;
  report.cast_saturated = 0.25;
  report.cast_flushed = 0.5;
  report.cast_peak = 64;
  const StepReported event = step_event(report);
  EXPECT_EQ(event.cast_saturated, 0.25);
  EXPECT_EQ(event.cast_flushed, 0.5);
  EXPECT_EQ(event.cast_peak, 64);
  EXPECT_EQ(event.state_changed, true);
}

}  // namespace
}  // namespace gnomon::decide
