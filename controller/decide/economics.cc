#include "controller/decide/economics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/errors.h"

namespace gnomon::decide {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kStepsMax = 1e9;
constexpr double kRelativeTolerance = 1e-6;

void require(bool accepted, const char* name, double value, const char* expected) {
  if (!accepted) throw ConfigError("", 0, name, fmt::format("{}", value), expected);
}

void require_steps(const char* name, double value) {
  require(value >= 0 && value <= kStepsMax, name, value, "a number of steps from 0 to 1e9");
}

void check_every(const RunModel& model, double every) {
  require(every >= every_min(model) && every <= 1e18, "every", every,
          "at least the window and, on spare devices, the time they need for one");
}

double verification(const RunModel& model) {
  return model.spare_share > 0 ? 0 : model.speedup * model.window_steps + model.switch_steps;
}

// From a window's end to its result, on spare devices.
double latency(const RunModel& model) {
  if (model.spare_share == 0) return 0;
  return model.speedup * model.window_steps / model.spare_share + model.switch_steps;
}

double spare_cost(const RunModel& model) { return model.spare_share * model.spare_price; }

// What does not depend on how far the run goes back.
double fixed_cost(const RunModel& model) {
  return (model.speedup - 1) * model.hold_steps + model.restart_steps;
}

double per_window(const RunModel& model) {
  return verification(model) +
         (model.speedup * latency(model) + fixed_cost(model)) / model.windows_between_false_alarms;
}

StepCost without_alarms(const RunModel& model, double every) {
  StepCost cost;
  cost.verification = verification(model) / every;
  cost.spare = spare_cost(model) * (1 + cost.verification);
  return cost;
}

// Expectations over one renewal: from a verified start to the end of the alarm's window (and the
// latency), in FP8 steps.
struct Cycle {
  double trained = 0;  // FP8 steps until the alarm
  double kept = 0;     // of those, up to the last window that ended before the fault
  double windows = 0;
};

Cycle expected_cycle(const RunModel& model, double every, double hazard, double ends) {
  const double window = model.window_steps;
  // A round is a window and the steps up to the next one. `ends` is the chance that it is the last,
  // and `rounds` how many go before that one.
  const double rounds = (1 - ends) / ends;
  const double in_window = -std::expm1(-hazard * window) / ends;
  const double by_chance = std::exp(-hazard * window) / model.windows_between_false_alarms / ends;
  const double faulty = std::max(0.0, 1 - by_chance);
  Cycle cycle;
  cycle.trained = rounds * every + window + faulty * model.delay_windows * every + latency(model);
  // A fault in a window, or a false alarm of it, leaves the end of the window before as the newest
  // good one; in the very first round that is the start itself.
  const double one_less = in_window + by_chance;
  cycle.kept = rounds * every + window - one_less * every + one_less * ends * (every - window);
  cycle.windows = rounds + 1 + faulty * model.delay_windows;
  return cycle;
}

template <typename Function>
double golden_section(const Function& cost, double low, double high) {
  const double ratio = (std::sqrt(5.0) - 1) / 2;
  double left = high - ratio * (high - low), right = low + ratio * (high - low);
  double at_left = cost(left), at_right = cost(right);
  while (high - low > kRelativeTolerance) {
    if (at_left <= at_right) {
      high = right;
      right = left;
      at_right = at_left;
      left = high - ratio * (high - low);
      at_left = cost(left);
    } else {
      low = left;
      left = right;
      at_left = at_right;
      right = low + ratio * (high - low);
      at_right = cost(right);
    }
  }
  return (low + high) / 2;
}

}  // namespace

void check_hazard(double hazard) {
  require(hazard >= 0 && hazard <= 1, "hazard", hazard, "faults per step, from 0 to 1");
}

void check_model(const RunModel& model) {
  require(model.speedup >= 0.01 && model.speedup <= 100, "speedup", model.speedup,
          "the time of a BF16 step over that of an FP8 step, from 0.01 to 100");
  require(model.window_steps >= 1 && model.window_steps <= kStepsMax, "window steps",
          model.window_steps, "a number of steps from 1 to 1e9");
  require_steps("switch steps", model.switch_steps);
  require(model.delay_windows >= 1 && model.delay_windows <= 1e6, "delay windows",
          model.delay_windows, "windows until an alarm, from 1 to 1e6");
  require_steps("hold steps", model.hold_steps);
  require_steps("restart steps", model.restart_steps);
  require(model.windows_between_false_alarms >= 2, "windows between false alarms",
          model.windows_between_false_alarms, "at least 2 windows, or infinity");
  require(model.spare_share == 0 || (model.spare_share >= 1e-6 && model.spare_share <= 1e3),
          "spare share", model.spare_share,
          "verifying devices per training device: 0 (none), or from 1e-6 to 1000");
  require(model.spare_price >= 0 && model.spare_price <= 100, "spare price", model.spare_price,
          "a spare device's price over a training device's, from 0 to 100");
}

double every_min(const RunModel& model) { return std::max(model.window_steps, latency(model)); }

StepCost step_cost(const RunModel& model, double every, double hazard) {
  check_model(model);
  check_hazard(hazard);
  check_every(model, every);
  // The chance that a round ends the cycle: by a fault somewhere in it or by a false alarm.
  const double ends =
      -std::expm1(-hazard * every + std::log1p(-1 / model.windows_between_false_alarms));
  if (ends == 0) return without_alarms(model, every);
  const Cycle cycle = expected_cycle(model, every, hazard, ends);
  const double useful = cycle.trained + model.hold_steps;
  const double lost = cycle.trained - cycle.kept;
  StepCost cost;
  cost.verification = cycle.windows * verification(model) / useful;
  cost.lost = lost / useful;
  cost.bf16 = (model.speedup - 1) * (lost + model.hold_steps) / useful;
  cost.restart = model.restart_steps / useful;
  cost.spare = spare_cost(model) * cost.total();
  return cost;
}

double net_speedup(const RunModel& model, double every, double hazard) {
  return model.speedup / step_cost(model, every, hazard).total();
}

double first_order_step_cost(const RunModel& model, double every, double hazard) {
  check_model(model);
  check_hazard(hazard);
  check_every(model, every);
  const double s = model.speedup;
  const double after_fault =
      s * (model.delay_windows * every + model.window_steps + latency(model)) + fixed_cost(model);
  const double after_false_alarm = s * (every + latency(model)) + fixed_cost(model);
  return (1 + spare_cost(model)) *
         (1 + verification(model) / every + hazard * after_fault +
          after_false_alarm / (model.windows_between_false_alarms * every));
}

double best_every_closed_form(const RunModel& model, double hazard) {
  check_model(model);
  check_hazard(hazard);
  if (hazard == 0) return kInfinity;
  const double cost = std::max(0.0, per_window(model));
  return std::max(every_min(model),
                  std::sqrt(cost / (hazard * model.speedup * model.delay_windows)));
}

double best_every(const RunModel& model, double hazard, double every_max) {
  const double low = every_min(model);
  check_every(model, every_max);
  const double guess = std::min(best_every_closed_form(model, hazard), every_max);
  const auto cost = [&](double log_every) {
    const double every = std::clamp(std::exp(log_every), low, every_max);
    return step_cost(model, every, hazard).total();
  };
  // The exact cost is higher where faults come often, and its minimum further out: hence the wide
  // bracket upwards, which grows while the minimum lies at its end.
  double left = std::log(std::max(low, guess / 16));
  double right = std::log(std::min(every_max, guess * 16));
  double best = golden_section(cost, left, right);
  while (right - best < 0.1 && right < std::log(every_max)) {
    right = std::min(std::log(every_max), right + std::log(64.0));
    best = golden_section(cost, left, right);
  }
  for (double end : {std::log(low), std::log(every_max)}) {
    if (cost(end) <= cost(best)) best = end;
  }
  return std::clamp(std::exp(best), low, every_max);
}

double break_even_hazard(const RunModel& model, double net_needed, double every_max) {
  const auto pays = [&](double hazard) {
    return net_speedup(model, best_every(model, hazard, every_max), hazard) > net_needed;
  };
  if (!pays(0)) return 0;
  if (pays(1)) return 1;
  double low = std::log(1e-15), high = 0;
  if (!pays(std::exp(low))) return 0;
  while (high - low > kRelativeTolerance) {
    const double middle = (low + high) / 2;
    (pays(std::exp(middle)) ? low : high) = middle;
  }
  return std::exp(low);
}

double break_even_hazard_closed_form(const RunModel& model) {
  check_model(model);
  const double s = model.speedup;
  const double gain = s - 1 - s / model.windows_between_false_alarms;
  if (gain <= 0) return 0;
  const double window =
      verification(model) + model.restart_steps / model.windows_between_false_alarms;
  const double root = std::sqrt(s * model.delay_windows * window);
  const double linear = s * model.window_steps + model.restart_steps;
  // The positive root of linear·x² + 2·root·x − gain, written so that nothing cancels.
  const double x = gain / (root + std::sqrt(root * root + linear * gain));
  return std::min(1.0, x * x);
}

double best_spare_share(const RunModel& model, double hazard) {
  check_model(model);
  check_hazard(hazard);
  const double s = model.speedup, m = model.delay_windows;
  const double per_share = hazard * s * s * (m + 1) * model.window_steps;
  const double rest =
      1 + hazard * (s * ((m + 1) * model.switch_steps + model.window_steps) + fixed_cost(model));
  return std::min(1.0, std::sqrt(per_share / std::max(rest, 1e-9)));
}

double compute_factor(double loss_gap_percent, double exponent) {
  require(std::isfinite(loss_gap_percent) && loss_gap_percent <= 100, "loss gap", loss_gap_percent,
          "a share of the loss in per cent, at most 100");
  require(exponent >= 0.005 && exponent <= 1, "loss exponent", exponent, "from 0.005 to 1");
  return std::pow(1 + std::max(0.0, loss_gap_percent) / 100, 1 / exponent);
}

std::string hazard_in_words(double hazard) {
  if (hazard <= 0) return "0";
  const double steps = 1 / hazard;
  if (steps >= 0.9995e6) return fmt::format("1/{:.3g}M", steps / 1e6);
  if (steps >= 0.9995e3) return fmt::format("1/{:.3g}k", steps / 1e3);
  return fmt::format("1/{:.3g}", steps);
}

}  // namespace gnomon::decide
