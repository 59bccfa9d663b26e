// Checks whether FP8 is worth it for a run that does not exist yet, and how to verify it: the
// economics (controller/decide/economics.h) turned into GPU-hours, money and a policy.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/economics.h"
#include "controller/decide/hazard.h"
#include "controller/decide/policy.h"
#include "controller/decide/promise.h"

namespace gnomon::cli {

// What is asked. In `model` everything but the spare devices, which follow from the GPUs.
struct RunQuestion {
  decide::RunModel model;
  double step_seconds = 1;  // of an FP8 step
  int64_t gpus = 1;         // that train
  int64_t spare_gpus = 0;   // that could verify beside them
  double hazard = 1 / 20e3;
  double hazard_low = 0;  // the range in which it is expected
  double hazard_high = 0;
  std::optional<decide::Hazard> belief;  // as a distribution, where there is one
  std::optional<double> steps;
  std::optional<double> budget_gpu_hours;  // used when `steps` is absent
  std::optional<double> gpu_hour_price;
  std::string currency;
  double loss_gap_percent = 0;  // FP8's at the end, over BF16's loss
  double loss_exponent = decide::kLossComputeExponent;
  int64_t checkpoint_every = 1;  // the cadence is a multiple of it
  double budget_percent = decide::Policy().verification.budget_percent;
};

// One way to run it. All rates are per GPU-hour paid.
struct RunWay {
  std::string name;  // trainer (the training GPUs verify), spare
  decide::RunModel model;
  int64_t every = 0;                 // the best cadence
  decide::StepCost cost;             // per useful step, at the hazard
  double net = 0;                    // over BF16, with the loss gap
  double net_low = 0, net_high = 0;  // at the range's worse and better end, with the same cadence
  double break_even_hazard = 0;      // at the best cadence for it
  std::optional<double> chance_of_loss;  // that the hazard is above it
  std::optional<double> steps, gpu_hours, money, days, false_alarms, faults;  // of the whole run
};

// What changing one input by so much does to the best way's net speed-up, cadence chosen anew.
struct Sensitivity {
  std::string input;
  std::string less, more;  // "2 → 1 windows"
  double net_less = 0, net_more = 0;
  double spread() const;
};

struct HazardRow {
  double hazard = 0;
  std::vector<int64_t> every;  // by way
  std::vector<double> net;
};

struct RunPlan {
  std::vector<RunWay> ways;  // on the training GPUs; and on spare ones if there are any
  size_t best = 0;
  bool worth_it = false;
  // The same in BF16 without verification: steps asked for or that the budget buys.
  std::optional<double> bf16_steps, bf16_gpu_hours, bf16_money, bf16_days;
  std::vector<HazardRow> table;            // 1/10k to 1/1M
  std::vector<Sensitivity> sensitivities;  // the largest first
  double best_spare_gpus = 0;              // for this hazard; not rounded
  // At that budget of verification, on the training GPUs.
  struct AtBudget {
    double budget_percent = 0;
    int64_t every = 0;
    double net = 0;
    std::vector<decide::Promise> promises;
  } at_budget;
  std::string advice;  // sentences for people
  std::string policy;  // TOML: [window]
};

// Throws ConfigError naming what is not accepted.
RunPlan plan_run(const RunQuestion& question);

boost::json::object to_json(const RunQuestion& question, const RunPlan& plan);
std::string in_words(const RunQuestion& question, const RunPlan& plan);

// "500k", "1.5M", "20000": throws ConfigError naming `option` when it is no such number above 0.
double parse_count(const std::string& option, const std::string& text);
// "1/100k", "1e-5", "0", or a range of two of them, "1/1M..1/10k", in any order.
void parse_hazard(const std::string& option, const std::string& text, RunQuestion& question);
// "20000", "20000h" and "20kgpuh" are GPU-hours; with another unit it is money: "1.5Musd".
struct Budget {
  double amount = 0;
  std::string currency;  // empty: GPU-hours
};
Budget parse_budget(const std::string& option, const std::string& text);

}  // namespace gnomon::cli
