// The fault library: faults that are switched on by configuration, to show that they are caught.
// Off by default; reported to the controller, which records them as injected. docs/faults.md says
// of each what it is modelled on, who feels it and what the verdict should be; fault_view.h is how
// the engine asks for them.
//
// A fault in the numerics, the software or the data is a pure function of (data, seed, step), so a
// replay feels it too, in the arms that run what is broken. A fault of the hardware, or of the live
// trainer's data loader, is not in a replay elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/settings.h"

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
  kBitFlip,   // one bit flips once: of a master weight after the step, or of a gradient in it
  kStuckBit,  // one bit of a GEMM's output or of a master weight is stuck
  // ---- what every precision feels ----
  kCorruptBatch,       // the step's tokens are replaced by uniform random ones
  kLearningRateSpike,  // the learning rate is `factor` times what it should be
  kRepeatedBatch,      // one batch is read again and again
  kSkippedBatch,       // the live trainer's loader is `steps` batches ahead
};

// The names of the kinds, in their order.
std::span<const std::string_view> fault_words();

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
  int64_t period = 0;    // steps from the start of one stretch to that of the next; 0: one stretch
  int64_t duration = 0;  // steps of a stretch, when there is a period

  template <class Visitor>
  static void describe(Visitor&& v) {
    using S = Fault;
    constexpr double kStepsMax = int64_t{1} << 40;
    constexpr double kElementsMax = 9.3e18;
    v("kind", &S::kind,
      Setting{.required = true,
              .words = fault_words(),
              .accepted = "a kind of [faults.md](faults.md)",
              .help = "What the fault does."});
    v("site", &S::site,
      Setting{
          .otherwise = "`\"*\"` for globs",
          .accepted =
              "`gradient_underflow`, `reduced_mantissa`, `e5m2_everywhere`, `fp8_second_moment`, "
              "`wrong_accumulation`: a glob over sites; `outlier_channel`: a down projection; "
              "`bit_flip`: a parameter; others: a GEMM site, like `model.layers.2.mlp.down_proj`",
          .help = "Where the fault acts."});
    v("tensor", &S::tensor,
      Setting{.otherwise = "`stuck_bit`: `\"output\"`; `bit_flip`: `\"weight\"`",
              .accepted = "`scale_shift`, `frozen_amax`: `input`, `weight` or `gradient`; "
                          "`stuck_bit`: `output` or `weight`; `bit_flip`: `weight` or `gradient`",
              .help =
                  "Tensor of the site. `bit_flip`: the master weight after the step, or a gradient "
                  "in one computation; each further flip in the step hits the next computation."});
    v("start_step", &S::start_step,
      Setting{.required = true, .range = {1, kStepsMax}, .help = "First step with the fault."});
    v("end_step", &S::end_step,
      Setting{.range = {0, kStepsMax},
              .help = "First step without it; 0: no end. Not for `bit_flip`."});
    v("period", &S::period,
      Setting{.range = {0, kStepsMax},
              .help = "Steps from the start of one stretch to the start of the next; 0: one "
                      "stretch."});
    v("duration", &S::duration,
      Setting{.range = {0, kStepsMax},
              .accepted = "1 … `period` - 1",
              .help = "Steps of a stretch; needed with `period`."});
    v("log2_factor", &S::log2_factor,
      Setting{.range = {-60, 60},
              .accepted = "`scale_shift`, `wire_scale_shift`: -60 … 60, not 0; "
                          "`gradient_underflow`, `coarse_recipe`, "
                          "`fp8_second_moment`: -60 … 60; `outlier_channel`: 1 … 24",
              .help = "Error as a power of 2."});
    v("element", &S::element,
      Setting{.range = {0, kElementsMax},
              .help = "Weight: index in the parameter; output: column; `outlier_channel`: channel; "
                      "`dropped_k_block`: first term."});
    v("bit", &S::bit,
      Setting{.range = {0, 31},
              .otherwise = "`stuck_bit`: 15",
              .help = "0 (lowest mantissa bit) to 31 (sign); of an output at most 15 (BF16)."});
    v("format", &S::format,
      Setting{.otherwise = "last two: `\"e4m3\"`",
              .accepted = "`reduced_mantissa`: `e8m3` to `e8m6`, `e3m2`, `e2m3`, `e2m1`; "
                          "`coarse_recipe`: `e4m3`, `e5m2`, `e3m2`, `e2m3`, `e2m1`; "
                          "`fp8_second_moment` (only with `optimizer.second_moment = \"fp8\"`): "
                          "`e4m3`, `e5m2`",
              .help = "Format used instead."});
    v("gemm", &S::gemm,
      Setting{.accepted = "`fprop`, `dgrad`, `wgrad`",
              .help = "`wrong_accumulation`, `dropped_k_block`: GEMM; empty: all."});
    v("factor", &S::factor,
      Setting{.range = {0, 1e6},
              .accepted = "0 … 10⁶, not 1",
              .help = "`learning_rate_spike`: multiplies the learning rate."});
    v("steps", &S::steps,
      Setting{.range = {0, kStepsMax},
              .otherwise = "`outlier_channel`, `skipped_batch`: 1",
              .help = "`outlier_channel`, `scale_shift`: duration of growth; `stale_weight`: "
                      "distance of copies (0: none); `skipped_batch`: batches ahead, at most "
                      "2²⁰."});
    v("terms", &S::terms,
      Setting{.range = {0, kElementsMax}, .help = "`dropped_k_block`: lost terms; must be given."});
    v("value", &S::value, Setting{.range = {0, 1}, .help = "`stuck_bit`: the bit's value."});
    v("fraction_bits", &S::fraction_bits,
      Setting{.range = {1, 13}, .help = "`wrong_accumulation`: bits that a sum keeps."});
  }

  bool active(int64_t step) const {
    return step >= start_step && (end_step == 0 || step < end_step) &&
           (period == 0 || step - stretch_start(step) < duration);
  }
  // The first step of the stretch that `step` is in; `step` is not before start_step.
  int64_t stretch_start(int64_t step) const {
    return period == 0 ? start_step : step - (step - start_step) % period;
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
