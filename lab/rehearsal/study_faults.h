// The two studies of `gnomon bench detect`: the models that they train, and what goes wrong in
// them.
//
//   dense   1,000 steps, every one of them replayed in a window of 20 steps: what windows can see
//   budget  20,000 steps under the default policy, which replays a twentieth: what users have
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "numerics/recipes.h"
#include "trainer/engine/faults.h"

namespace gnomon::rehearsal {

// A verifier that answers wrongly, from the fault's first step on. Hashes follow the losses.
//   low    BF16 losses 0.7% too low: healthy FP8 seems worse
//   same   the run's own plan in place of BF16: no gap, ever
//   bits   a bit of the weights differs; losses and everything else are right
enum class Lie { kNone, kLow, kSame, kBits };
const char* lie_name(Lie lie);  // "none", "low", "same", "bits"

struct StudyCase {
  std::string name;  // kind and strength: "scale_shift:+6"; "none" has nothing wrong
  std::vector<Fault> faults;
  Lie lie = Lie::kNone;
};

struct Configuration {
  const char* name;
  Recipe recipe;
  int layers, width, heads, ffn;
  double learning_rate;
};

struct Study {
  const char* name;
  int64_t steps;
  int64_t checkpoint_every;
  int64_t fault_from;    // first step of most faults: before, the noise is learned
  int64_t warmup_steps;  // of the learning rate
  bool every_step_in_a_window;
  // Up to this seed references have two twins, nudged by a rounding error: they show chance; and
  // runs of the budget study are compared with the old default, half of every 50 steps.
  int64_t twins_to_seed;
  std::span<const Configuration> configurations;
};

// Throws ConfigError for other names than "dense" and "budget".
const Study& study_from_name(const std::string& name);
const Configuration& configuration(const Study& study, const std::string& name);
// All that goes wrong in a model of so many layers. The place in the list says in which
// configurations it runs.
std::vector<StudyCase> study_cases(const Study& study, int layers);
// "none" or one of those above; throws ConfigError naming them.
StudyCase study_case(const Study& study, const std::string& name, int layers);

}  // namespace gnomon::rehearsal
