// What triage's tests begin with: a gap, a spike, and steps that were not finite.
#pragma once

#include <cmath>

#include "controller/decide/triage.h"

namespace gnomon::decide {

inline Measurement gap_of(double percent) {
  Measurement measured;
  measured.reference = 2.0;
  measured.gap = 2.0 * percent / 100;
  measured.d_percent = percent;
  return measured;
}

// A spike of 4.0 at step 105 over a mean of 3.0; threshold 3.5.
inline SpikeFinding spike_finding() {
  SpikeFinding finding;
  finding.kind = "spike";
  finding.step = 105;
  finding.loss = 4.0;
  finding.expected = 3.0;
  finding.deviation = 0.07;
  finding.threshold = 3.5;
  return finding;
}

inline SpikeFinding nan_finding() {
  SpikeFinding finding = spike_finding();
  finding.kind = "non_finite";
  finding.loss = NAN;
  return finding;
}

}  // namespace gnomon::decide
