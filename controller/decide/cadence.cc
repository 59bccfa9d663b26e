#include "controller/decide/cadence.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/printable.h"
#include "base/rounding.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kEveryMax = 1'000'000'000;

void check_limits(const CadenceLimits& limits) {
  const auto refuse = [](const char* name, auto value, const std::string& expected) {
    throw ConfigError("", 0, name, fmt::format("{}", value), expected);
  };
  if (limits.every_min < 1 || limits.every_min > kEveryMax) {
    refuse("every_min", limits.every_min, "a number of steps from 1 to 1e9");
  }
  if (limits.every_max < limits.every_min || limits.every_max > kEveryMax) {
    refuse("every_max", limits.every_max,
           fmt::format("at least every_min ({} here), at most 1e9", limits.every_min));
  }
  if (limits.checkpoint_every < 1 || limits.checkpoint_every > kEveryMax) {
    refuse("checkpoint_every", limits.checkpoint_every, "a number of steps from 1 to 1e9");
  }
  if (!(limits.gain_min >= 0 && limits.gain_min <= 1)) {
    refuse("gain_min", limits.gain_min, "a share of the time from 0 to 1");
  }
}

struct Range {
  int64_t low = 0;
  bool forced = false;  // `low` is beyond the largest that the limits allow
  int64_t high = 0;
};

Range possible(const RunModel& model, const CadenceLimits& limits) {
  const double least = std::max(static_cast<double>(limits.every_min), every_min(model));
  if (least > static_cast<double>(kEveryMax)) {
    throw ConfigError("", 0, "window", fmt::format("{:.0f} steps apart at least", least),
                      "spare devices that verify a window within 1e9 steps");
  }
  Range range;
  range.low = round_up(static_cast<int64_t>(std::ceil(least)), limits.checkpoint_every);
  range.high = std::max(range.low, round_down(limits.every_max, limits.checkpoint_every));
  range.forced = range.low > limits.every_max;
  return range;
}

// The better one of the two multiples around the best.
int64_t best_multiple(const RunModel& model, double hazard, const Range& range, int64_t unit) {
  const double best = best_every(model, hazard, static_cast<double>(range.high));
  const int64_t below =
      std::clamp(round_down(static_cast<int64_t>(best), unit), range.low, range.high);
  const int64_t above = std::clamp(below + unit, range.low, range.high);
  const double cost_below = step_cost(model, static_cast<double>(below), hazard).total();
  const double cost_above = step_cost(model, static_cast<double>(above), hazard).total();
  return cost_above < cost_below ? above : below;
}

std::string why(const RunModel& model, double hazard, const Range& range, int64_t every) {
  std::string text = fmt::format("at about one fault in {} FP8 steps and a speed-up of {:.2f}",
                                 plain_number(1 / std::max(hazard, 1e-12)), model.speedup);
  if (range.forced && model.spare_share > 0) {
    return text + ", as often as the spare devices can verify, though every_max asks for more";
  }
  if (every == range.low && every == range.high)
    return text + ", the only one that the limits leave";
  if (every == range.low) {
    return text + (model.spare_share > 0 ? ", as often as the spare devices or the limits allow"
                                         : ", as often as the limits allow");
  }
  if (every == range.high) return text + ", as rarely as the limits allow";
  return text + ", verifying and losing work cost the least together there";
}

}  // namespace

Cadence choose_cadence(const RunModel& model, double hazard, int64_t current,
                       const CadenceLimits& limits) {
  check_model(model);
  check_hazard(hazard);
  check_limits(limits);
  const Range range = possible(model, limits);
  Cadence cadence;
  cadence.every = best_multiple(model, hazard, range, limits.checkpoint_every);
  cadence.net = net_speedup(model, static_cast<double>(cadence.every), hazard);
  const bool stays_possible =
      current >= range.low && current <= range.high && current % limits.checkpoint_every == 0;
  if (stays_possible) {
    cadence.net_current = net_speedup(model, static_cast<double>(current), hazard);
    if (current == cadence.every || cadence.net < cadence.net_current * (1 + limits.gain_min)) {
      cadence.reason = fmt::format(
          "A window every {} steps stays (net speed-up {:.3f}): every {} would gain {:.2f}%.",
          current, cadence.net_current, cadence.every,
          100 * (cadence.net / cadence.net_current - 1));
      cadence.every = current;
      cadence.net = cadence.net_current;
      return cadence;
    }
  }
  cadence.changed = true;
  cadence.reason =
      fmt::format("A window every {} steps{}: {} (net speed-up {:.3f}).", cadence.every,
                  current > 0 ? fmt::format(" instead of {}", current) : "",
                  why(model, hazard, range, cadence.every), cadence.net);
  if (cadence.net <= 1) cadence.reason += " FP8 is not worth it at this rate of faults.";
  return cadence;
}

}  // namespace gnomon::decide
