// Was it worth it? What FP8 under verification has cost and earned so far, for people and programs:
// the run's account with what only the state and the policy know, the hazard learned, and the
// cadence in force beside the best one. The API, the metrics, the page, the summary, the report and
// the backtest all show this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/cadence.h"
#include "controller/decide/economics.h"
#include "controller/decide/policy.h"
#include "controller/decide/promise.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

// The account with the loss gap of the plan in force, and with the seconds that spare devices have
// waited: they are paid for as long as the run trains, holds and switches.
Account account_now(const State& state, const Policy& policy);

// What FP8 costs of the loss by the newest windows, or by long forks if there are any: these see
// the damage that stays in the weights over their length, a window what its own steps add.
struct LossGap {
  std::string source;        // long_forks, windows; empty: fewer than kLevelWindows of either, BF16
  double percent = 0;        // mean gap
  double error_percent = 0;  // standard error
  // The part that the account pays for: 0 within twice the error.
  double paid_percent() const;
};
LossGap loss_gap(const State& state);

// The run as the economics see it: what was measured where it was, else the policy's word.
RunModel run_model(const State& state, const Policy& policy);

// Behind a forecast that rests on the policy's word.
inline constexpr const char* kSpeedAssumed = " FP8's speed is assumed, it is not measured yet.";

// Below it there is nothing to optimise.
inline constexpr double kSpeedupWorthIt = 1.01;
CadenceLimits cadence_limits(const State& state, const Policy& policy);

struct CadenceReport {
  std::string kind;                // fixed (by the policy), budget
  int64_t every = 0;               // in force, steps from one window's start to the next
  std::optional<double> net;       // expected with it; empty when it is not possible
  std::optional<int64_t> best;     // the best multiple of the checkpoint interval
  std::optional<double> best_net;  // expected with that
  std::string reason;              // why there is no best one, or what it would save
};

// Share of everything paid: what training waited for, and the spare devices, busy or not.
double verification_share(const Statement& statement);
int64_t steps_lost(const Account& account);  // by rollbacks

struct NetSpeedupReport {
  Account account;
  Statement statement;
  LossGap loss_gap;
  double verification_share = 0;
  Hazard hazard;
  double hazard_mean = 0;  // faults per FP8 step
  double hazard_low = 0;   // 5%
  double hazard_high = 0;  // 95%
  CadenceReport cadence;
  Promise promise;                // of windows at that distance, for a fault of two deviations
  int64_t rollback_steps = 0;     // at most, before the fault
  std::vector<CostPoint> points;  // along the run, and as it stands now
};

// Takes some milliseconds, for the promise.
NetSpeedupReport net_speedup_report(const State& state, const Policy& policy);

// One JSON object with plain keys: schema Economics of controller/api/openapi.
std::string net_speedup_to_json(const NetSpeedupReport& report);

}  // namespace gnomon::decide
