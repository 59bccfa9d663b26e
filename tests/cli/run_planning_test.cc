#include "lab/planning/run_planning.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <cmath>
#include <functional>
#include <limits>

#include "base/errors.h"
#include "controller/decide/policy.h"

namespace gnomon::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

RunQuestion question() {
  RunQuestion asked;
  asked.model.speedup = 1.35;
  asked.model.window_steps = 20;
  asked.step_seconds = 2;
  asked.gpus = 64;
  asked.checkpoint_every = 10;
  parse_hazard("--hazard", "1/100k", asked);
  return asked;
}

TEST(RunPlanningTest, TheAnswerIsTheEconomicsAtTheBestCadence) {
  const RunPlan plan = plan_run(question());
  ASSERT_EQ(plan.ways.size(), 1U);
  EXPECT_EQ(plan.ways[0].every % 10, 0);
  EXPECT_NEAR(static_cast<double>(plan.ways[0].every), decide::best_every(question().model, 1e-5),
              10);
  EXPECT_DOUBLE_EQ(
      plan.ways[0].net,
      decide::net_speedup(question().model, static_cast<double>(plan.ways[0].every), 1e-5));
  EXPECT_TRUE(plan.worth_it);
}

// Verified for the default budget, FP8 stays faster than BF16 at the hazards that it is used for.
TEST(RunPlanningTest, TheDefaultBudgetStandsBesideTheBestCadence) {
  RunQuestion asked = question();
  asked.model.window_steps = 50;
  asked.checkpoint_every = 50;
  const RunPlan plan = plan_run(asked);
  EXPECT_EQ(plan.at_budget.budget_percent, 5);
  EXPECT_EQ(plan.at_budget.every % 50, 0);
  EXPECT_GT(plan.at_budget.net, 1);
  EXPECT_LE(plan.at_budget.net, plan.ways[0].net);
  ASSERT_EQ(plan.at_budget.promises.size(), 3U);
  EXPECT_GT(plan.at_budget.promises[0].within_steps, plan.at_budget.promises[2].within_steps);
  EXPECT_THAT(
      in_words(asked, plan),
      HasSubstr(fmt::format("{} steps, if it costs", *plan.at_budget.promises[0].within_steps)));
  const auto json = to_json(asked, plan).at("at_budget");
  EXPECT_EQ(json.at("every").as_int64(), plan.at_budget.every);
  RunQuestion more = asked;
  more.budget_percent = 20;
  const RunPlan dense = plan_run(more);
  EXPECT_LT(dense.at_budget.every, plan.at_budget.every);
  EXPECT_LT(dense.at_budget.promises[0].within_steps, plan.at_budget.promises[0].within_steps);
  more.budget_percent = 0;
  EXPECT_THROW(plan_run(more), ConfigError);
}

TEST(RunPlanningTest, StepsBecomeGpuHoursDaysAndMoney) {
  RunQuestion asked = question();
  asked.steps = 500e3;
  asked.gpu_hour_price = 2.5;
  const RunPlan plan = plan_run(asked);
  const RunWay& way = plan.ways[0];
  const double hours = 500e3 * 2 * 64 / 3600;
  EXPECT_NEAR(*plan.bf16_gpu_hours, 1.35 * hours, 1e-6);
  EXPECT_NEAR(*plan.bf16_days, 1.35 * 500e3 * 2 / 86400, 1e-9);
  EXPECT_NEAR(*way.gpu_hours, hours * way.cost.total(), 1e-6);
  EXPECT_NEAR(*way.gpu_hours, *plan.bf16_gpu_hours / way.net, 1e-6);
  EXPECT_NEAR(*way.money, 2.5 * *way.gpu_hours, 1e-6);
  EXPECT_NEAR(*way.faults, 5, 1e-9);
  EXPECT_NEAR(*way.false_alarms, 500e3 / static_cast<double>(way.every) / 10'000, 1e-9);
}

TEST(RunPlanningTest, ABudgetBuysMoreStepsByTheNetSpeedup) {
  RunQuestion asked = question();
  asked.spare_gpus = 2;
  asked.budget_gpu_hours = 1e4;
  const RunPlan plan = plan_run(asked);
  for (const RunWay& way : plan.ways) {
    EXPECT_NEAR(*way.gpu_hours, 1e4, 1e-6);
    EXPECT_NEAR(*way.steps / *plan.bf16_steps, way.net, 1e-9);
  }
  EXPECT_NEAR(*plan.ways[1].days * 66 * 24, 1e4, 1e-6) << "66 GPUs are paid";
}

TEST(RunPlanningTest, TheBetterWayIsAdvised) {
  RunQuestion asked = question();
  asked.spare_gpus = 2;
  EXPECT_EQ(plan_run(asked).ways[plan_run(asked).best].name, "spare");
  EXPECT_THAT(plan_run(asked).advice, HasSubstr("on the spare GPUs"));
  asked.spare_gpus = 32;
  EXPECT_EQ(plan_run(asked).ways[plan_run(asked).best].name, "trainer");
  asked.model.spare_price = 0;
  EXPECT_EQ(plan_run(asked).ways[plan_run(asked).best].name, "spare");
}

TEST(RunPlanningTest, TheRightNumberOfSpareGpusIsNamed) {
  const RunPlan plan = plan_run(question());
  const double best = std::round(plan.best_spare_gpus);
  ASSERT_GE(best, 1);
  EXPECT_THAT(plan.advice, HasSubstr(std::to_string(static_cast<int>(best)) + " more GPU"));
  RunQuestion asked = question();
  asked.checkpoint_every = 1;
  const auto net = [&](double gpus) {
    asked.spare_gpus = static_cast<int64_t>(gpus);
    return plan_run(asked).ways[1].net;
  };
  EXPECT_GT(net(best), net(2 * best));
  EXPECT_GE(net(best) + 1e-3, std::max(net(best + 1), best > 1 ? net(best - 1) : 0));
}

TEST(RunPlanningTest, WhenItIsNotWorthItTheAnswerSaysSo) {
  RunQuestion asked = question();
  asked.model.speedup = 1.05;
  parse_hazard("--hazard", "1/2k", asked);
  const RunPlan plan = plan_run(asked);
  EXPECT_FALSE(plan.worth_it);
  EXPECT_THAT(plan.advice, HasSubstr("not worth it"));
  EXPECT_THAT(in_words(asked, plan), Not(HasSubstr("[window]")));
  asked.model.speedup = 0.9;
  EXPECT_EQ(plan_run(asked).ways[0].break_even_hazard, 0);
  EXPECT_THAT(plan_run(asked).advice, HasSubstr("No rate of faults"));
}

TEST(RunPlanningTest, ALossGapIsPaidForInEveryNumber) {
  RunQuestion asked = question();
  asked.steps = 500e3;
  const RunPlan without = plan_run(asked);
  asked.loss_gap_percent = 0.25;
  const RunPlan with = plan_run(asked);
  const double factor = std::pow(1.0025, 20);
  EXPECT_NEAR(without.ways[0].net / with.ways[0].net, factor, 1e-9);
  EXPECT_NEAR(*with.ways[0].gpu_hours / *without.ways[0].gpu_hours, factor, 1e-9);
  EXPECT_LT(with.ways[0].break_even_hazard, without.ways[0].break_even_hazard);
  asked.loss_gap_percent = 2;
  EXPECT_FALSE(plan_run(asked).worth_it) << "2% of the loss is half of the compute";
}

TEST(RunPlanningTest, TheChanceOfLossIsOfThePriorAboveTheBreakEven) {
  const RunPlan plan = plan_run(question());
  EXPECT_NEAR(*plan.ways[0].chance_of_loss,
              std::erfc(std::sqrt(50'000 * plan.ways[0].break_even_hazard)), 1e-9)
      << "Gamma(½, 50k) for a mean of 1/100k";
  RunQuestion asked = question();
  parse_hazard("--hazard", "1/1M..1/10k", asked);
  EXPECT_FALSE(plan_run(asked).ways[0].chance_of_loss.has_value());
}

TEST(RunPlanningTest, TheRangeOfHazardsIsTheRangeOfNetSpeedups) {
  RunQuestion asked = question();
  parse_hazard("--hazard", "1/10k..1/1M", asked);
  EXPECT_NEAR(asked.hazard, 1e-5, 1e-18);
  const RunWay way = plan_run(asked).ways[0];
  EXPECT_LT(way.net_low, way.net);
  EXPECT_LT(way.net, way.net_high);
  EXPECT_DOUBLE_EQ(way.net_low,
                   decide::net_speedup(way.model, static_cast<double>(way.every), 1e-4));
}

TEST(RunPlanningTest, ThePolicyThatIsProposedIsAccepted) {
  for (int64_t checkpoint_every : {1, 7, 10, 500, 100'000}) {
    RunQuestion asked = question();
    asked.checkpoint_every = checkpoint_every;
    const RunPlan plan = plan_run(asked);
    const decide::Policy policy = decide::Policy::parse(plan.policy);
    EXPECT_EQ(policy.window.every, plan.ways[0].every);
    EXPECT_EQ(policy.window.every % checkpoint_every, 0);
    EXPECT_EQ(policy.window.steps % checkpoint_every, 0);
    EXPECT_GE(policy.window.steps, 20);
  }
}

TEST(RunPlanningTest, TheWindowsThatAreCountedAreThoseOfThePolicy) {
  RunQuestion asked = question();
  asked.checkpoint_every = 500;
  EXPECT_EQ(plan_run(asked).ways[0].model.window_steps, 500)
      << "a window is whole checkpoint intervals, and that is what it costs";
}

TEST(RunPlanningTest, TheSensitivitiesAreSortedAndHaveTheRightSign) {
  RunQuestion asked = question();
  asked.spare_gpus = 2;
  const RunPlan plan = plan_run(asked);
  ASSERT_EQ(plan.sensitivities.size(), 9U);
  const double net = plan.ways[plan.best].net;
  for (size_t i = 0; i < plan.sensitivities.size(); ++i) {
    const Sensitivity& one = plan.sensitivities[i];
    EXPECT_LE(one.spread(), plan.sensitivities[i > 0 ? i - 1 : 0].spread());
    const bool more_is_better =
        one.input == "speed-up of a step" || one.input == "time between false alarms";
    if (one.input == "spare GPUs") continue;
    EXPECT_GE(more_is_better ? one.net_more : one.net_less, net - 1e-12) << one.input;
    EXPECT_LE(more_is_better ? one.net_less : one.net_more, net + 1e-12) << one.input;
  }
  EXPECT_EQ(plan.sensitivities[0].input, "speed-up of a step");
}

TEST(RunPlanningTest, TheRowsOverHazardsFallAndTheCadencesShorten) {
  const RunPlan plan = plan_run(question());
  ASSERT_EQ(plan.table.size(), 7U);
  EXPECT_DOUBLE_EQ(plan.table.front().hazard, 1e-4);
  EXPECT_DOUBLE_EQ(plan.table.back().hazard, 1e-6);
  for (size_t i = 1; i < plan.table.size(); ++i) {
    EXPECT_GT(plan.table[i].net[0], plan.table[i - 1].net[0]);
    EXPECT_GT(plan.table[i].every[0], plan.table[i - 1].every[0]);
  }
}

TEST(RunPlanningTest, TheJsonIsTheSameAnswer) {
  RunQuestion asked = question();
  asked.spare_gpus = 2;
  asked.steps = 500e3;
  const RunPlan plan = plan_run(asked);
  const boost::json::object json = to_json(asked, plan);
  EXPECT_EQ(json.at("worth_it").as_bool(), true);
  EXPECT_EQ(json.at("verified_on").as_string(), "spare");
  EXPECT_DOUBLE_EQ(json.at("net_speedup").as_double(), plan.ways[1].net);
  EXPECT_EQ(json.at("every").as_int64(), plan.ways[1].every);
  double sum = 0;
  const boost::json::object& cost = json.at("ways").at(0).at("cost_of_a_step").as_object();
  for (const auto& [key, value] : cost) {
    if (key != "total") sum += value.as_double();
  }
  EXPECT_NEAR(sum, cost.at("total").as_double(), 1e-12);
  EXPECT_TRUE(json.at("bf16").at("money").is_null());
  EXPECT_EQ(json.at("hazards").as_array().size(), 7U);
}

TEST(RunPlanningTest, NumbersAreReadAsPeopleWriteThem) {
  EXPECT_DOUBLE_EQ(parse_count("--steps", "500k"), 5e5);
  EXPECT_DOUBLE_EQ(parse_count("--steps", "1.5M"), 1.5e6);
  EXPECT_DOUBLE_EQ(parse_count("--steps", "2e4"), 2e4);
  RunQuestion asked;
  parse_hazard("--hazard", "1e-5", asked);
  EXPECT_DOUBLE_EQ(asked.hazard, 1e-5);
  EXPECT_LT(asked.hazard_low, 1e-5);
  EXPECT_GT(asked.hazard_high, 1e-5);
  parse_hazard("--hazard", "0", asked);
  EXPECT_EQ(asked.hazard, 0);
  EXPECT_FALSE(asked.belief.has_value());
  EXPECT_EQ(parse_budget("--budget", "20000").currency, "");
  EXPECT_DOUBLE_EQ(parse_budget("--budget", "20kh").amount, 2e4);
  EXPECT_EQ(parse_budget("--budget", "20kgpuh").currency, "");
  EXPECT_EQ(parse_budget("--budget", "1.5Musd").currency, "usd");
  EXPECT_DOUBLE_EQ(parse_budget("--budget", "1.5Musd").amount, 1.5e6);
}

TEST(RunPlanningTest, WhatIsNoNumberIsRefusedByItsOption) {
  const auto refused = [](const std::string& text, const std::function<void()>& call) {
    try {
      call();
      ADD_FAILURE() << text << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.value(), text);
    }
  };
  for (const std::string text :
       {"", "k", "-5", "0", "1kk", "nan", "inf", "1e400", "12x", " 1", "1 "}) {
    refused(text, [&] { parse_count("--steps", text); });
  }
  for (const std::string text : {"", "1/", "1/0", "/100", "2", "-1e-5", "nan", "1/100k..", "..1/5",
                                 "0..1e-5", "1/1M..1/10k..1/2", "1/100kx", "a..b"}) {
    RunQuestion asked;
    refused(text, [&] { parse_hazard("--hazard", text, asked); });
  }
  for (const std::string text : {"", "usd", "-1", "0", "5$", "100 usd", "nanh", "1k2"}) {
    refused(text, [&] { parse_budget("--budget", text); });
  }
}

TEST(RunPlanningTest, WhatCannotBeIsRefusedByName) {
  const auto refused = [](const std::string& key, const std::function<void(RunQuestion&)>& change) {
    RunQuestion asked = question();
    change(asked);
    try {
      plan_run(asked);
      ADD_FAILURE() << key << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.key(), key);
    }
  };
  refused("--step-seconds", [](RunQuestion& q) { q.step_seconds = 0; });
  refused("--step-seconds", [](RunQuestion& q) { q.step_seconds = NAN; });
  refused("--gpus", [](RunQuestion& q) { q.gpus = 0; });
  refused("--spare-gpus", [](RunQuestion& q) { q.spare_gpus = -1; });
  refused("--spare-gpus", [](RunQuestion& q) { q.spare_gpus = 6401; });
  refused("--spare-gpus", [](RunQuestion& q) { q.gpus = 10'001, q.spare_gpus = 1; });
  refused("--gpu-hour-price", [](RunQuestion& q) { q.gpu_hour_price = NAN; });
  refused("--speedup", [](RunQuestion& q) { q.model.speedup = 60; });
  refused("speedup", [](RunQuestion& q) { q.model.speedup = NAN; });
  refused("delay windows", [](RunQuestion& q) { q.model.delay_windows = 0.5; });
  refused("--detector-delay", [](RunQuestion& q) { q.model.delay_windows = 2e5; });
  refused("window steps", [](RunQuestion& q) { q.model.window_steps = 0; });
  refused("loss gap", [](RunQuestion& q) { q.loss_gap_percent = 101; });
  refused("loss exponent", [](RunQuestion& q) { q.loss_exponent = 0; });
  refused("--checkpoint-every", [](RunQuestion& q) { q.checkpoint_every = 0; });
}

TEST(RunPlanningTest, TheWidestInputsStillHaveAnAnswer) {
  for (double speedup : {0.1, 1.0, 50.0}) {
    for (double steps : {0.0, 1e8}) {
      for (const char* hazard : {"0", "1e-12", "1"}) {
        for (int64_t spare : {0, 1, 6400}) {
          RunQuestion asked = question();
          asked.model.speedup = speedup;
          asked.model.switch_steps = asked.model.hold_steps = asked.model.restart_steps = steps;
          asked.model.windows_between_false_alarms = std::numeric_limits<double>::infinity();
          asked.spare_gpus = spare;
          asked.steps = 1000;
          parse_hazard("--hazard", hazard, asked);
          const RunPlan plan = plan_run(asked);
          EXPECT_TRUE(std::isfinite(plan.ways[plan.best].net));
          EXPECT_GE(plan.ways[plan.best].net, 0);
          EXPECT_THAT(in_words(asked, plan), Not(HasSubstr("nan")));
        }
      }
    }
  }
}

}  // namespace
}  // namespace gnomon::cli
