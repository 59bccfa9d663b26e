// The fault library: faults that are switched on by configuration, to show that they are caught.
// Off by default; told to the controller, which records them as injected. docs/faults.md says of
// each what it is modelled on, who feels it and what the verdict should be; fault_view.h is how the
// engine asks for them.
//
// A fault in the numerics, the software or the data is a pure function of (data, seed, step), so a
// replay feels it too, in the arms that run what is broken. A fault of the hardware, or of the live
// trainer's data loader, is not in a replay elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace gnomon {

enum class FaultKind {
  // ---- the FP8 recipe: how a tensor is rounded ----
  kFrozenAmax,         // delayed scaling: the amax history of one site's tensor stops updating
  kScaleShift,         // the quantisation scale of one site's tensor is off by 2^log2_factor
  kOutlierChannel,     // one channel of a down projection's input grows to 2^log2_factor times
  kGradientUnderflow,  // output gradients in E4M3, their scale off by 2^log2_factor
  kReducedMantissa,    // low-precision GEMMs in `format` instead
  kE5m2Everywhere,     // activations and weights in E5M2 too
  kCoarseRecipe,       // one scale for the whole tensor and `format`, at a site that cannot bear it
  kFp8SecondMoment,    // FP8 second moments lose what is small beside a tensor's largest
  kWireScaleShift,     // the scales of gradients that ranks send in FP8 are off by 2^log2_factor
  // ---- the FP8 kernel and what is around it ----
  kWrongAccumulation,  // sums without promotion, or of fewer bits
  kDroppedKBlock,      // terms of the sum are left out
  kStaleWeight,        // the FP8 copy of a weight is not made anew after each update
  // ---- the hardware: on the live trainer's device only ----
  kBitFlip,   // one bit of one master weight flips after the step, once
  kStuckBit,  // one bit of a GEMM's output or of a master weight is stuck
  // ---- what every precision feels ----
  kCorruptBatch,       // the step's tokens are replaced by uniform random ones
  kLearningRateSpike,  // the learning rate is `factor` times what it should be
  kSkippedBatch,       // the live trainer's loader is `steps` batches ahead
};

struct Fault {
  FaultKind kind = FaultKind::kScaleShift;
  std::string site = {};         // module name or, where the kind says so, a glob or a parameter
  std::string tensor = "input";  // "input", "weight", "gradient"; stuck_bit: "output", "weight"
  int64_t start_step = 0;        // first step it acts in
  int64_t end_step = 0;          // first step it no longer acts in; 0 = never ends
  int log2_factor = 0;
  int64_t element = 0;  // index into the parameter, of the channel, or of the first term lost
  int bit = 30;  // 0 (lowest mantissa bit) .. 31 (sign) of FP32; of an output: .. 15, of BF16
  std::string format = {};  // a name of Format
  std::string gemm = {};    // "fprop", "dgrad", "wgrad"; empty: all of them
  double factor = 1;        // learning_rate_spike
  int64_t steps = 0;        // of growth; between refreshes, 0 = none; batches ahead
  int64_t terms = 0;        // dropped_k_block: how many
  int value = 1;            // stuck_bit: 0 or 1
  int fraction_bits = 13;   // wrong_accumulation: kept of each term below the largest exponent

  bool active(int64_t step) const {
    return step >= start_step && (end_step == 0 || step < end_step);
  }
  std::string describe() const;  // a sentence
};

// Where the cause lies, which is what triage should find.
enum class FaultOrigin {
  kNumerics,
  kKernel,
  kTransientHardware,
  kPersistentHardware,
  kDataMismatch,
  kGeneric
};
std::string fault_origin_name(FaultOrigin origin);  // "numerics", "kernel", "transient hardware", …

// What Fault::site names.
enum class FaultPlace { kNothing, kSite, kSites, kDownProjection, kParameter };

struct FaultTraits {
  FaultKind kind;
  const char* name;  // "frozen_amax", ...
  FaultOrigin origin;
  FaultPlace place;
  std::vector<std::string> keys;  // that it has besides kind, site and start_step
  // Arms, replayed elsewhere, that feel it where the run's plan has the site in FP8.
  bool bf16, same, fakequant;

  bool has(const std::string& key) const;
};

std::span<const FaultTraits> all_faults();
const FaultTraits& fault_traits(FaultKind kind);

std::string fault_kind_name(FaultKind kind);              // "frozen_amax", ...
FaultKind fault_kind_from_name(const std::string& name);  // throws Error naming the accepted ones

}  // namespace gnomon
