#include "lab/simulate/run_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <limits>

#include "base/errors.h"
#include "controller/decide/gap_noise.h"

namespace gnomon::simulate {
namespace {

constexpr std::string_view kNames[kFaultKinds] = {"numerics",      "overflow",     "kernel_bug",
                                                  "scale_drift",   "bit_flip",     "hardware",
                                                  "skipped_batch", "generic_spike"};

void check(const char* what, double value, double low, double high) {
  if (value >= low && value <= high) return;
  throw ConfigError("", 0, what, fmt::format("{:g}", value),
                    std::isfinite(high) ? fmt::format("from {:g} to {:g}", low, high)
                                        : fmt::format("at least {:g}", low));
}

}  // namespace

std::string_view fault_kind_name(FaultKind kind) { return kNames[static_cast<size_t>(kind)]; }

std::vector<std::string> fault_kind_names() { return {std::begin(kNames), std::end(kNames)}; }

FaultKind fault_kind_from_name(const std::string& name) {
  for (size_t i = 0; i < kFaultKinds; ++i) {
    if (kNames[i] == name) return static_cast<FaultKind>(i);
  }
  throw ConfigError("", 0, "fault", name,
                    fmt::format("one of {}", fmt::join(fault_kind_names(), ", ")));
}

bool comes_again(FaultKind kind) {
  return kind != FaultKind::kBitFlip && kind != FaultKind::kHardware &&
         kind != FaultKind::kSkippedBatch;
}

void check_model(const RunModel& m) {
  constexpr double kForever = std::numeric_limits<double>::infinity();
  check("steps", static_cast<double>(m.steps), 1, 1e7);
  check("checkpoint-every", static_cast<double>(m.checkpoint_every), 1, 1e6);
  check("layers", m.layers, 1, 9);
  check("speedup", m.speedup, 0.1, 100);
  for (size_t i = 0; i < kFaultKinds; ++i) {
    check(fmt::format("rate of {}", kNames[i]).c_str(), m.hazards[i], 0, 0.1);
  }
  check("fault-size", m.size_low, 1e-6, 1e3);
  check("fault-size", m.size_high, m.size_low, 1e3);
  check("lasting-share", m.lasting_share, 0, 1);
  check("brief-steps", m.brief_steps, 1, 1e9);
  check("heal-steps", m.heal_steps, 0, kForever);
  decide::noise_shape(m.noise);
  check("noise-percent", m.noise_percent, 0, 100);
  check("autocorrelation", m.autocorrelation, -0.99, 0.99);
  check("bf16-noise-share", m.bf16_noise_share, 0, 1);
  check("mean-gap-percent", m.mean_gap_percent, -100, 100);
  check("offset-percent", m.offset_percent, 0, 100);
  check("loss-noise", m.loss_noise, 0, 0.2);
  check("verifiers", m.verifiers, 0, 64);
  check("verifier-speed", m.verifier_speed, 0.001, 1000);
  check("verifier-dies", m.verifier_dies, 0, 1);
  check("verifier-lies", m.verifier_lies, 0, 1);
  check("verifier-back-seconds", m.verifier_back_seconds, 0, 1e9);
  check("verifier-error-percent", m.verifier_error_percent, 0, 100);
  check("crash-rate", m.crashes, 0, 0.01);
  check("restart-seconds", m.restart_seconds, 0, 1e9);
  check("person-seconds", m.person_seconds, 0, 1e9);
  check("holds-max", m.holds_max, 0, 1000);
}

std::vector<double> loss_curve(int64_t steps) {
  std::vector<double> curve;
  curve.reserve(static_cast<size_t>(steps) + 1);
  for (int64_t t = 0; t <= steps; ++t) {
    curve.push_back(1.7 + 7.3 * std::pow(1 + static_cast<double>(t) / 200, -0.3));
  }
  return curve;
}

}  // namespace gnomon::simulate
