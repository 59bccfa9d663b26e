// What a simulated run is like: how long, how noisy, what goes wrong how often, and who verifies
// it. Plain data; docs/simulate.md says what each number means and what is not modelled.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon::simulate {

enum class FaultKind {
  kNumerics,      // FP8 of a few sites damages the weights step by step
  kOverflow,      // one step in which a site's FP8 overflows: a spike or a loss that is not finite
  kKernelBug,     // as kNumerics, but the same FP8 values in BF16 GEMMs do no harm
  kScaleDrift,    // evaluating in FP8 costs more from here on; the weights are not damaged
  kBitFlip,       // the trainer's device flips a bit once
  kHardware,      // its host goes on flipping bits until the run moves
  kSkippedBatch,  // the trainer takes other tokens than the data's order gives
  kSpike,         // data that make any precision spike
};
inline constexpr size_t kFaultKinds = 8;
std::string_view fault_kind_name(FaultKind kind);  // numerics, ..., generic_spike
std::vector<std::string> fault_kind_names();
FaultKind fault_kind_from_name(const std::string& name);  // throws ConfigError naming them all
// Belongs to a step of the run, and so comes again when the step is done again; the others belong
// to a moment of the trainer.
bool comes_again(FaultKind kind);

// Steps over which a fault's size and the noise are stated: the policy's default window.
inline constexpr double kSizeSteps = 25;

struct RunModel {
  int64_t steps = 20'000;
  int64_t checkpoint_every = 25;
  int layers = 4;        // 1 … 9
  double speedup = 1.3;  // time of a BF16 step over an FP8 step's, which is a second

  std::array<double, kFaultKinds> hazards = {};  // faults per step, by kind
  // For kNumerics and kKernelBug: per cent of the loss that kSizeSteps steps add; log-uniform.
  double size_low = 0.2, size_high = 2;
  double lasting_share = 0.5;  // of them: those that stay to the end
  double brief_steps = 500;    // mean length of the others
  double heal_steps = 2'000;   // damage falls by a factor e in so many steps; 0 = it never does

  std::string noise = "gaussian";  // shape of D about its mean: gap_noise.h
  double noise_percent = 0.03;     // its deviation over kSizeSteps, growing with the root of steps
  double autocorrelation = 0;      // from one measured window to the next
  double bf16_noise_share = 0.2;   // deviation of BF16's own part, over noise_percent
  double mean_gap_percent = 0;     // of a healthy window
  double offset_percent = 0.12;    // what evaluating in FP8 costs
  double loss_noise = 0.01;        // deviation of a step's loss, over the loss

  int verifiers = 0;                    // 0: the trainer verifies itself while training waits
  double verifier_speed = 1;            // steps in the time of a trainer's step
  double verifier_dies = 0;             // chance per replay
  double verifier_lies = 0;             // chance per replay to compute wrongly from then on
  double verifier_back_seconds = 600;   // until another takes the place of one that died
  double verifier_error_percent = 0.5;  // of the loss, by one that computes wrongly

  double crashes = 0;             // of the trainer, per step
  double restart_seconds = 100;   // after a crash or a rollback
  double person_seconds = 3'600;  // until somebody looks after a run that is held
  int holds_max = 3;              // then the run is given up
};

// Throws ConfigError naming the number and the range.
void check_model(const RunModel& model);

// Held-out loss in nats without any damage after each step, 0 … steps: 1.7 + 7.3·(1 + t/200)^−0.3.
std::vector<double> loss_curve(int64_t steps);

}  // namespace gnomon::simulate
