#include "trainer/engine/fault_check.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "protocol/site_glob.h"
#include "trainer/engine/parameters.h"

namespace gnomon {
namespace {

constexpr int64_t kStepsMax = int64_t{1} << 40;
constexpr int kLog2Max = 60;
constexpr int kGrowthMax = 24;
constexpr int kHopperBits = 13;
constexpr double kFactorMax = 1e6;
constexpr int64_t kSkippedMax = 1 << 20;

[[noreturn]] void refuse_fault(const std::string& key, const std::string& value,
                               const std::string& accepted) {
  throw ConfigError("fault", 0, key, value, accepted);
}

void check_range(const std::string& key, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high) {
    refuse_fault(key, std::to_string(value), fmt::format("{} to {}", low, high));
  }
}

void check_one_of(const std::string& key, const std::string& value,
                  const std::vector<std::string>& accepted) {
  if (std::ranges::find(accepted, value) == accepted.end()) {
    refuse_fault(key, value, fmt::format("{}", fmt::join(accepted, ", ")));
  }
}

// Checks one fault against the model it is for.
class FaultCheck {
 public:
  FaultCheck(const Fault& fault, const EngineConfig& config)
      : fault_(fault),
        traits_(fault_traits(fault.kind)),
        config_(config),
        sites_(config.model.sites()),
        layout_(config.model) {}

  void run() const {
    check_range("start_step", fault_.start_step, 0, kStepsMax);
    if (traits_.has("end_step") && fault_.end_step != 0 && fault_.end_step <= fault_.start_step) {
      refuse_fault("end_step", std::to_string(fault_.end_step),
                   "a step after start_step, or 0 for a fault without an end");
    }
    stretches();
    place();
    needs_fp8();
    numbers();
  }

 private:
  void stretches() const {
    if (fault_.period == 0 && fault_.duration == 0) return;
    check_range("period", fault_.period, 2, kStepsMax);
    check_range("duration", fault_.duration, 1, fault_.period - 1);
  }

  void place() const {
    switch (traits_.place) {
      case FaultPlace::kNothing:
        return;
      case FaultPlace::kParameter:
        if (layout_.find(fault_.site) == nullptr) {
          refuse_fault("site", fault_.site, "a parameter's name, such as " + layout_.all()[1].name);
        }
        return;
      case FaultPlace::kSites:
        return glob();
      case FaultPlace::kSite:
      case FaultPlace::kDownProjection:
        return site();
    }
  }

  void glob() const {
    const std::string wrong = glob_error(fault_.site);
    const bool any = wrong.empty() && std::ranges::any_of(sites_, [&](const std::string& site) {
                       return site_matches(fault_.site, site, config_.model.layers);
                     });
    if (!any) {
      refuse_fault(
          "site", fault_.site,
          fmt::format("a glob that matches some of the {} GEMM sites {} to {}{}", sites_.size(),
                      sites_.front(), sites_.back(), wrong.empty() ? "" : ": " + wrong));
    }
  }

  void site() const {
    const bool down = traits_.place == FaultPlace::kDownProjection;
    const std::vector<Site> all = all_sites(config_.model);
    const auto found = std::ranges::find(all, fault_.site, &Site::name);
    if (found == all.end() || (down && found->group != SiteGroupName::kDown)) {
      refuse_fault("site", fault_.site,
                   down ? "a down projection, like model.layers.0.mlp.down_proj"
                        : fmt::format("one of the {} GEMM sites {} to {}", sites_.size(),
                                      sites_.front(), sites_.back()));
    }
  }

  // The bit of an FP32 model's plan-less GEMM sticks as well.
  void needs_fp8() const {
    const bool fp8 =
        traits_.origin == FaultOrigin::kNumerics || traits_.origin == FaultOrigin::kKernel;
    if (fp8 && config_.compute == Compute::kFp32) {
      refuse_fault("kind", traits_.name,
                   "a fault that FP32 feels (model.compute = \"fp32\" runs no GEMM in FP8)");
    }
  }

  void numbers() const {
    if (traits_.has("tensor")) tensor();
    if (traits_.has("format")) format();
    if (traits_.has("log2_factor")) log2_factor();
    if (traits_.has("gemm") && !fault_.gemm.empty()) {
      check_one_of("gemm", fault_.gemm, {"fprop", "dgrad", "wgrad"});
    }
    switch (fault_.kind) {
      case FaultKind::kOutlierChannel:
        check_range("element", fault_.element, 0, weight().shape[1] - 1);
        return check_range("steps", fault_.steps, 1, kStepsMax);
      case FaultKind::kWrongAccumulation:
        return check_range("fraction_bits", fault_.fraction_bits, 1, kHopperBits);
      case FaultKind::kDroppedKBlock:
        return dropped_block();
      case FaultKind::kScaleShift:
      case FaultKind::kStaleWeight:
        return check_range("steps", fault_.steps, 0, kStepsMax);
      case FaultKind::kBitFlip:
        check_range("element", fault_.element, 0, layout_.find(fault_.site)->size - 1);
        return check_range("bit", fault_.bit, 0, 31);
      case FaultKind::kStuckBit:
        return stuck_bit();
      case FaultKind::kLearningRateSpike:
        if (!(fault_.factor >= 0 && fault_.factor <= kFactorMax) || fault_.factor == 1) {
          refuse_fault("factor", fmt::format("{}", fault_.factor),
                       fmt::format("0 to {}, and not 1", kFactorMax));
        }
        return;
      case FaultKind::kSkippedBatch:
        return check_range("steps", fault_.steps, 1, kSkippedMax);
      default:
        return;
    }
  }

  void tensor() const {
    if (fault_.kind == FaultKind::kStuckBit) {
      check_one_of("tensor", fault_.tensor, {"output", "weight"});
    } else if (fault_.kind == FaultKind::kBitFlip) {
      // Checkpoints of 0.2 say "input", which meant nothing: the weight's bit flips.
      if (fault_.tensor != "input") check_one_of("tensor", fault_.tensor, {"weight", "gradient"});
    } else {
      check_one_of("tensor", fault_.tensor, {"input", "weight", "gradient"});
    }
  }

  void format() const {
    if (fault_.kind == FaultKind::kReducedMantissa) {
      check_one_of("format", fault_.format,
                   {"e8m3", "e8m4", "e8m5", "e8m6", "e3m2", "e2m3", "e2m1"});
    } else if (fault_.kind == FaultKind::kCoarseRecipe) {
      check_one_of("format", fault_.format, {"e4m3", "e5m2", "e3m2", "e2m3", "e2m1"});
    } else {
      check_one_of("format", fault_.format, {"e4m3", "e5m2"});
    }
  }

  void log2_factor() const {
    if (fault_.kind == FaultKind::kOutlierChannel) {
      return check_range("log2_factor", fault_.log2_factor, 1, kGrowthMax);
    }
    check_range("log2_factor", fault_.log2_factor, -kLog2Max, kLog2Max);
    const bool shifts =
        fault_.kind == FaultKind::kScaleShift || fault_.kind == FaultKind::kWireScaleShift;
    if (shifts && fault_.log2_factor == 0) {
      refuse_fault(
          "log2_factor", "0",
          fmt::format("-{} to {} and not 0, which would change nothing", kLog2Max, kLog2Max));
    }
  }

  void dropped_block() const {
    const int64_t tokens = int64_t{1} * config_.batch.sequences * config_.batch.tokens;
    int64_t shortest = std::min({weight().shape[0], weight().shape[1], tokens});
    if (fault_.gemm == "fprop") shortest = weight().shape[1];
    if (fault_.gemm == "dgrad") shortest = weight().shape[0];
    if (fault_.gemm == "wgrad") shortest = tokens;
    check_range("element", fault_.element, 0, shortest - 1);
    check_range("terms", fault_.terms, 1, shortest - fault_.element);
  }

  void stuck_bit() const {
    const bool output = fault_.tensor == "output";
    check_range("element", fault_.element, 0, output ? weight().shape[0] - 1 : weight().size - 1);
    check_range("bit", fault_.bit, 0, output ? 15 : 31);
    check_range("value", fault_.value, 0, 1);
  }

  const Parameter& weight() const { return layout_.weight_of(fault_.site); }

  const Fault& fault_;
  const FaultTraits& traits_;
  const EngineConfig& config_;
  std::vector<std::string> sites_;
  ParameterLayout layout_;
};

}  // namespace

void check_fault(const Fault& fault, const EngineConfig& config) {
  FaultCheck(fault, config).run();
}

}  // namespace gnomon
