#include "trainer/engine/faults.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/errors.h"

namespace gnomon {
namespace {

using Kind = FaultKind;
using Origin = FaultOrigin;
using Place = FaultPlace;

const std::array kTraits = {
    FaultTraits{Kind::kFrozenAmax,
                "frozen_amax",
                Origin::kNumerics,
                Place::kSite,
                {"tensor", "end_step"},
                false,
                true,
                true},
    FaultTraits{Kind::kScaleShift,
                "scale_shift",
                Origin::kNumerics,
                Place::kSite,
                {"tensor", "end_step", "log2_factor", "steps"},
                false,
                true,
                true},
    FaultTraits{Kind::kOutlierChannel,
                "outlier_channel",
                Origin::kNumerics,
                Place::kDownProjection,
                {"end_step", "log2_factor", "element", "steps"},
                false,
                true,
                true},
    FaultTraits{Kind::kGradientUnderflow,
                "gradient_underflow",
                Origin::kNumerics,
                Place::kSites,
                {"end_step", "log2_factor"},
                false,
                true,
                true},
    FaultTraits{Kind::kReducedMantissa,
                "reduced_mantissa",
                Origin::kNumerics,
                Place::kSites,
                {"end_step", "format"},
                false,
                true,
                true},
    FaultTraits{Kind::kE5m2Everywhere,
                "e5m2_everywhere",
                Origin::kNumerics,
                Place::kSites,
                {"end_step"},
                false,
                true,
                true},
    FaultTraits{Kind::kCoarseRecipe,
                "coarse_recipe",
                Origin::kNumerics,
                Place::kSite,
                {"end_step", "format", "log2_factor"},
                false,
                true,
                true},
    FaultTraits{Kind::kFp8SecondMoment,
                "fp8_second_moment",
                Origin::kNumerics,
                Place::kSites,
                {"end_step", "format", "log2_factor"},
                false,
                true,
                true},
    FaultTraits{Kind::kWireScaleShift,
                "wire_scale_shift",
                Origin::kNumerics,
                Place::kNothing,
                {"end_step", "log2_factor"},
                false,
                true,
                true},
    FaultTraits{Kind::kWrongAccumulation,
                "wrong_accumulation",
                Origin::kKernel,
                Place::kSites,
                {"end_step", "gemm", "fraction_bits"},
                false,
                true,
                false},
    FaultTraits{Kind::kDroppedKBlock,
                "dropped_k_block",
                Origin::kKernel,
                Place::kSite,
                {"end_step", "gemm", "element", "terms"},
                false,
                true,
                false},
    FaultTraits{Kind::kStaleWeight,
                "stale_weight",
                Origin::kKernel,
                Place::kSite,
                {"end_step", "steps"},
                false,
                true,
                false},
    FaultTraits{Kind::kBitFlip,
                "bit_flip",
                Origin::kTransientHardware,
                Place::kParameter,
                {"tensor", "element", "bit"},
                false,
                false,
                false},
    FaultTraits{Kind::kStuckBit,
                "stuck_bit",
                Origin::kPersistentHardware,
                Place::kSite,
                {"tensor", "end_step", "element", "bit", "value"},
                false,
                false,
                false},
    FaultTraits{Kind::kCorruptBatch,
                "corrupt_batch",
                Origin::kGeneric,
                Place::kNothing,
                {"end_step"},
                true,
                true,
                true},
    FaultTraits{Kind::kLearningRateSpike,
                "learning_rate_spike",
                Origin::kGeneric,
                Place::kNothing,
                {"end_step", "factor"},
                true,
                true,
                true},
    FaultTraits{Kind::kRepeatedBatch,
                "repeated_batch",
                Origin::kGeneric,
                Place::kNothing,
                {"end_step"},
                true,
                true,
                true},
    FaultTraits{Kind::kSkippedBatch,
                "skipped_batch",
                Origin::kDataMismatch,
                Place::kNothing,
                {"end_step", "steps"},
                false,
                false,
                false},
};

std::string when_of(const Fault& fault) {
  const std::string stretches =
      fault.period == 0 ? ""
                        : fmt::format("in {} of every {} steps ", fault.duration, fault.period);
  return stretches + (fault.end_step == 0 ? fmt::format("from step {} on", fault.start_step)
                                          : fmt::format("from step {} to step {}", fault.start_step,
                                                        fault.end_step - 1));
}

std::string gemms_of(const Fault& fault) {
  return fault.gemm.empty() ? "GEMMs" : fault.gemm + " GEMMs";
}

// Without its steps.
std::string what_the_recipe_does(const Fault& fault) {
  const std::string& site = fault.site;
  switch (fault.kind) {
    case Kind::kFrozenAmax:
      return fmt::format("the amax history of {}'s {} stops updating", site, fault.tensor);
    case Kind::kScaleShift:
      return fmt::format(
          "the quantisation scale of {}'s {} is off by 2^{}{}", site, fault.tensor,
          fault.log2_factor,
          fault.steps == 0 ? "" : fmt::format(", growing over {} steps", fault.steps));
    case Kind::kOutlierChannel:
      return fmt::format("channel {} of {}'s input grows to 2^{} times its size over {} steps",
                         fault.element, site, fault.log2_factor, fault.steps);
    case Kind::kGradientUnderflow:
      return fmt::format("the gradients of {} are in E4M3, their scale off by 2^{}", site,
                         fault.log2_factor);
    case Kind::kReducedMantissa:
      return fmt::format("the FP8 GEMMs of {} run in {}", site, fault.format);
    case Kind::kE5m2Everywhere:
      return fmt::format("the FP8 GEMMs of {} have every operand in E5M2", site);
    case Kind::kCoarseRecipe:
      return fmt::format(
          "the FP8 GEMMs of {} run in {} with one scale for each tensor, off by 2^{}", site,
          fault.format, fault.log2_factor);
    case Kind::kWireScaleShift:
      return fmt::format("the scales of gradients sent in FP8 are off by 2^{}", fault.log2_factor);
    default:
      return fmt::format(
          "the FP8 second moments of {} go through {} with one scale, off by 2^{}, before they are "
          "stored",
          site, fault.format, fault.log2_factor);
  }
}

}  // namespace

std::span<const FaultTraits> all_faults() { return kTraits; }

bool FaultTraits::has(const std::string& key) const {
  // What can end can also act in stretches.
  if (key == "period" || key == "duration") return has("end_step");
  return std::ranges::find(keys, key) != keys.end();
}

const FaultTraits& fault_traits(FaultKind kind) {
  auto found = std::ranges::find(kTraits, kind, &FaultTraits::kind);
  GNOMON_ASSERT(found != kTraits.end());
  return *found;
}

std::string fault_origin_name(FaultOrigin origin) {
  constexpr std::array kNames = {"numerics",           "kernel",
                                 "transient hardware", "persistent hardware",
                                 "data mismatch",      "generic"};
  return kNames[static_cast<size_t>(origin)];
}

std::span<const std::string_view> fault_words() {
  static const auto words = [] {
    std::array<std::string_view, kTraits.size()> names;
    std::ranges::transform(kTraits, names.begin(), &FaultTraits::name);
    return names;
  }();
  return words;
}

std::string fault_kind_name(FaultKind kind) { return fault_traits(kind).name; }

FaultKind fault_kind_from_name(const std::string& name) {
  const auto found = std::ranges::find(fault_words(), name);
  if (found != fault_words().end()) return static_cast<FaultKind>(found - fault_words().begin());
  throw Error(fmt::format("fault kind \"{}\" is unknown; accepted: {}", name,
                          fmt::join(fault_words(), ", ")));
}

std::string Fault::describe() const {
  const std::string when = when_of(*this);
  switch (kind) {
    case FaultKind::kWrongAccumulation:
      return fmt::format("the FP8 {} of {} keep {} bits of a sum and never promote it {}",
                         gemms_of(*this), site, fraction_bits, when);
    case FaultKind::kDroppedKBlock:
      return fmt::format("the FP8 {} of {} leave out terms {} to {} of every sum {}",
                         gemms_of(*this), site, element, element + terms - 1, when);
    case FaultKind::kStaleWeight:
      return steps == 0
                 ? fmt::format("the FP8 copy of {}'s weight is not made anew {}", site, when)
                 : fmt::format("the FP8 copy of {}'s weight is made anew every {} steps only {}",
                               site, steps, when);
    case FaultKind::kBitFlip:
      return tensor == "gradient"
                 ? fmt::format(
                       "bit {} of element {} of {}'s gradient flips in one computation of "
                       "step {}",
                       bit, element, site, start_step)
                 : fmt::format("bit {} of element {} of {} flips after step {}", bit, element, site,
                               start_step);
    case FaultKind::kStuckBit:
      return tensor == "output"
                 ? fmt::format("bit {} of column {} of {}'s output is stuck at {} {}", bit, element,
                               site, value, when)
                 : fmt::format("bit {} of element {} of {}'s weight is stuck at {} {}", bit,
                               element, site, value, when);
    case FaultKind::kCorruptBatch:
      return fmt::format("the tokens are replaced by random ones {}", when);
    case FaultKind::kLearningRateSpike:
      return fmt::format("the learning rate is multiplied by {} {}", factor, when);
    case FaultKind::kRepeatedBatch:
      return fmt::format("the batch of the first step is read again and again {}", when);
    case FaultKind::kSkippedBatch:
      return fmt::format("the trainer reads the batch of {} step{} later {}", steps,
                         steps == 1 ? "" : "s", when);
    default:
      return what_the_recipe_does(*this) + " " + when;
  }
}

}  // namespace gnomon
