// The first level of triage, as pure functions: does a replay under the same plan do what the run
// did, and does BF16 suffer too? Hardware is ruled out before numerics is blamed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/detector.h"
#include "controller/decide/events.h"

namespace gnomon::decide {

// What the `same` replay says about the run.
struct Reproduction {
  bool reproduces = false;
  bool bitwise = false;  // rests on hashes; else on losses, because the fingerprints differ
  std::optional<int64_t> first_mismatch_step;
  std::string sentence;  // how it was compared and what came out
};

// A window that alarmed by its gap of `measured`. Bits count only between equal fingerprints and
// when at least one step was compared; else the replay reproduces when its own end loss lies over
// the BF16 replay's by at least half the gap.
Reproduction compare_same_gap(const ReplayFinished& same, const Measurement& measured);
// A step that was not finite or a spike: without comparable bits the replay reproduces when it
// shows the same.
Reproduction compare_same_spike(const ReplayFinished& same, const SpikeFinding& finding,
                                int64_t steps_asked);

// How a replay went through the step of a finding.
struct SpikeComparison {
  std::optional<double> loss;  // at the step; absent when the replay did not get there
  bool non_finite = false;     // a loss was not finite, or the replay stopped early for that reason
  bool spikes = false;         // over the threshold, or at least half as high as the run's spike
};

// Looks at the finding's step and the two before it.
SpikeComparison compare_spike(const ReplayFinished& replay, const SpikeFinding& finding,
                              int64_t steps_asked);

// Verdicts: transient_fault, generic_spike, fp8_numerics, unexplained. A missing argument means
// that nobody could do that replay.
std::string gap_verdict(const std::optional<Reproduction>& same);
std::string spike_verdict(const SpikeFinding& finding, const std::optional<Reproduction>& same,
                          const std::optional<SpikeComparison>& bf16);

// Does a rescue close the gap? What remains, 100·(L16(w_rescue) − L16(w16))/L16(w16), must be at
// most max(share·D, min(tolerance, D/2)): at least half of the gap goes, however near the tolerance
// it was.
bool rescue_closes_gap(const ReplayFinished& rescue, const Measurement& measured,
                       double recovered_share, double tolerance_percent);
// Does a rescue take the spike away? Finite, and either under the threshold or at most
// `recovered_share` of the way from BF16's loss to the run's.
bool rescue_avoids_spike(const ReplayFinished& rescue, const SpikeFinding& finding,
                         const SpikeComparison& bf16, double recovered_share, int64_t steps_asked);

}  // namespace gnomon::decide
