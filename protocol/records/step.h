// Training steps as a trainer reports them, with what it knows of its GPU.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

// Why a GPU runs below its clock, as NVML names them, in the order of its bits. More than one may
// hold.
inline constexpr std::array<std::string_view, 8> kThrottleReasons = {
    "idle",       "applications_clocks", "sw_power_cap",        "hw_slowdown",
    "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"};
using ThrottleReason = Word<kThrottleReasons>;

// What the GPU of rank 0 said of itself. What a device does not tell is absent, which is not 0.
struct DeviceHealth {
  std::string device;
  std::string name = {};
  double time = 0;
  // Why it could not be asked, then with no number below; empty = it answered.
  std::string error = {};
  std::optional<double> sm_clock_mhz = {};
  std::optional<double> memory_clock_mhz = {};
  std::optional<double> power_watts = {};
  std::optional<double> power_limit_watts = {};
  std::optional<double> temperature_celsius = {};
  std::optional<int64_t> memory_used_bytes = {};
  std::optional<int64_t> memory_total_bytes = {};
  std::optional<double> utilization_percent = {};
  // Volatile counts: of errors since the driver was loaded.
  std::optional<int64_t> ecc_corrected = {};
  std::optional<int64_t> ecc_uncorrected = {};
  std::optional<std::vector<ThrottleReason>> throttle_reasons = {};
  // Memory rows to be replaced at the next reset; a replacement that failed.
  std::optional<bool> remapped_rows_pending = {};
  std::optional<bool> remapped_rows_failure = {};

  static constexpr Record kRecord = {
      "DeviceHealth",
      "What the GPU of rank 0 said of itself. It is no part of a step: a repeat without it, or "
      "with another sample, is a repeat, and no decision rests on it. What a device does not say "
      "is no member, never 0. When `ecc_uncorrected` grows, the daemon writes a notice "
      "`ecc_errors`."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = DeviceHealth;
    v("device", &R::device,
      Member{.required = true, .text = {.least = 1, .most = 100}, .help = "PCI bus id."});
    v("name", &R::name, Member{.text = {.most = 100}, .help = "The vendor's name."});
    v("time", &R::time, Member{.required = true, .range = kTime, .help = "When it was asked."});
    v("error", &R::error,
      Member{.text = {.least = 0, .most = 1000, .form = Text::Form::kFree},
             .help = "Why it could not be asked; empty when it answered."});
    v("sm_clock_mhz", &R::sm_clock_mhz, Member{.range = {0, 1e5}});
    v("memory_clock_mhz", &R::memory_clock_mhz, Member{.range = {0, 1e5}});
    v("power_watts", &R::power_watts, Member{.range = {0, 1e5}});
    v("power_limit_watts", &R::power_limit_watts, Member{.range = {0, 1e5}});
    v("temperature_celsius", &R::temperature_celsius, Member{.range = {0, 1000}});
    v("memory_used_bytes", &R::memory_used_bytes, Member{.range = kCount});
    v("memory_total_bytes", &R::memory_total_bytes, Member{.range = kCount});
    v("utilization_percent", &R::utilization_percent, Member{.range = {0, 100}});
    v("ecc_corrected", &R::ecc_corrected,
      Member{.range = kCount, .help = "Since the driver was loaded."});
    v("ecc_uncorrected", &R::ecc_uncorrected,
      Member{.range = kCount, .help = "Since the driver was loaded."});
    v("throttle_reasons", &R::throttle_reasons, Member{});
    v("remapped_rows_pending", &R::remapped_rows_pending,
      Member{.help = "Memory rows wait for the next reset to be replaced."});
    v("remapped_rows_failure", &R::remapped_rows_failure, Member{.help = "A replacement failed."});
  }
};

// From 1e-6 to 1 + 1e-6, with room for rounding.
inline constexpr Range kCastShareRange = {9e-7, 1.001};
// A product of two FP32 numbers may be larger than either.
inline constexpr Range kCastPeakRange = {.least = 0, .nan = true, .infinity = true};

// What a training step is. Its identity is (run, attempt, step); a repeat with another loss,
// grad_norm, weights_hash, batch_hash or plan_version is refused with 409.
struct StepNumbers {
  int64_t attempt = 1;
  int64_t step = 0;
  int64_t plan_version = 0;
  double loss = 0;
  std::optional<double> grad_norm = {};
  double learning_rate = 0;
  int64_t tokens = 0;
  double step_seconds = 0;
  std::string weights_hash = {};
  std::string batch_hash = {};
  // What the step's casts to FP8 did, over all tensors: a site's input, weight and gradient each.
  // No part of its identity.
  std::optional<double> cast_saturated = {};
  std::optional<double> cast_flushed = {};
  std::optional<double> cast_peak = {};
  std::optional<bool> state_changed = {};

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = StepNumbers;
    v("attempt", &R::attempt, Member{.required = true, .range = kStep});
    v("step", &R::step,
      Member{.required = true, .range = {1, kStepsMax}, .help = "Above the attempt's base_step."});
    v("plan_version", &R::plan_version, Member{.required = true, .range = kPlanVersion});
    v("loss", &R::loss,
      Member{.required = true,
             .range = kComputed,
             .help = "Mean over the step's tokens before the update, nats per token."});
    v("grad_norm", &R::grad_norm,
      Member{.range = kMagnitude, .help = "Before clipping; absent where it is not computed."});
    v("learning_rate", &R::learning_rate, Member{.range = {0, 1e6}});
    v("tokens", &R::tokens, Member{.range = kTokens});
    v("step_seconds", &R::step_seconds, Member{.range = kSeconds});
    v("weights_hash", &R::weights_hash,
      Member{.text = kHash, .help = "Hash of all BF16 weights after the update."});
    v("batch_hash", &R::batch_hash,
      Member{.text = kHashOrNothing,
             .help = "Hash of the step's token ids in order; empty: not given."});
    v("cast_saturated", &R::cast_saturated,
      Member{.range = kCastShareRange,
             .help = "Values beyond the format's largest in the step's casts to FP8: geometric "
                     "mean over the tensors of their share + 1e-6."});
    v("cast_flushed", &R::cast_flushed,
      Member{.range = kCastShareRange,
             .help = "Values other than 0 that the step's casts to FP8 made 0: geometric mean over "
                     "the tensors of their share + 1e-6."});
    v("cast_peak", &R::cast_peak,
      Member{.range = kCastPeakRange,
             .help = "Largest absolute value times scale, over the format's largest, of the tensor "
                     "where that is greatest; 1 fits exactly."});
    v("state_changed", &R::state_changed,
      Member{.help = "True: the step's update found other master weights or moments than the "
                     "update before had written. Absent: it did not, or nothing was compared."});
  }
};

// As a trainer reports it.
struct StepReport : StepNumbers {
  double time = 0;
  // Where a GPU is watched: its newest answer, when there is one that no step before has carried.
  // No part of the step itself.
  std::optional<DeviceHealth> device_health = {};

  static constexpr Record kRecord = {
      "StepReport",
      "One training step. A repeat with another loss, grad_norm, weights_hash, batch_hash or "
      "plan_version is refused with 409."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = StepReport;
    StepNumbers::describe(v);
    v("time", &R::time, Member{.range = kTime});
    v("device_health", &R::device_health, Member{});
  }
};

struct StepRow : StepNumbers {
  int64_t run = 0;
  double reported_at = 0;
  std::optional<int64_t> seq = {};

  static constexpr Row kRow = {"StepRow", "steps"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = StepRow;
    v("run", &R::run, Member{});
    StepNumbers::describe(v);
    v("reported_at", &R::reported_at, Member{.range = kTime});
    v("seq", &R::seq,
      Member{.help = "Number of the report's event; null: it has a row in `events`."});
  }
};

struct DeviceHealthRow {
  int64_t run = 0;
  int64_t sample = 0;
  int64_t attempt = 1;
  int64_t step = 0;
  std::string host;
  std::string device;
  double sampled_at = 0;
  double reported_at = 0;
  std::optional<int64_t> ecc_uncorrected = {};
  // How many of those people know of: it stood so when the device was first seen, or a notice said
  // so.
  std::optional<int64_t> ecc_told = {};
  std::string body;

  static constexpr Row kRow = {"DeviceHealthRow", "device_health"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = DeviceHealthRow;
    v("run", &R::run, Member{});
    v("sample", &R::sample, Member{.help = "1, 2, …"});
    v("attempt", &R::attempt, Member{.range = kStep});
    v("step", &R::step, Member{.range = kStep, .help = "Whose report carried it."});
    v("host", &R::host, Member{.help = "Where rank 0 ran."});
    v("device", &R::device, Member{.help = "PCI bus id."});
    v("sampled_at", &R::sampled_at, Member{.range = kTime, .help = "By the trainer's clock."});
    v("reported_at", &R::reported_at, Member{.range = kTime});
    v("ecc_uncorrected", &R::ecc_uncorrected,
      Member{.help = "Errors since the driver was loaded; null is not said."});
    v("ecc_told", &R::ecc_told,
      Member{.help = "Those of them that were there at first or that a notice reported."});
    v("body", &R::body, Member{.json = "DeviceHealth"});
  }
};

// POST /v1/runs/{run}/steps
struct StepBatch {
  std::vector<StepReport> steps;

  static constexpr Record kRecord = {"StepBatch", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = StepBatch;
    v("steps", &R::steps, Member{.required = true, .items_most = 10000});
  }
};

// Answer to steps and checkpoints: what the trainer may not delete, and the newest directive there
// is.
struct ReportAck {
  int64_t accepted = 0;
  int64_t repeated = 0;
  std::vector<std::string> protected_checkpoints;
  int64_t last_directive = 0;

  static constexpr Record kRecord = {"ReportAck", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = ReportAck;
    v("accepted", &R::accepted, Member{.required = true, .range = {0, 1e15}, .help = "New facts."});
    v("repeated", &R::repeated,
      Member{.required = true, .range = {0, 1e15}, .help = "Known already with the same values."});
    v("protected_checkpoints", &R::protected_checkpoints,
      Member{
          .required = true,
          .text = kPath,
          .help =
              "URIs that open windows or the last verified state need; they may not be deleted."});
    v("last_directive", &R::last_directive, Member{.range = kStep, .help = "The newest there is."});
  }
};

}  // namespace gnomon
