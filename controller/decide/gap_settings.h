// What the policy makes of the detectors: their settings, and a window as they read it.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

inline constexpr int64_t kLevelWindows = 8;  // whose mean gap an alarm of evidence is about

GapSettings gap_settings(const Policy& policy);
// Settings for long forks: noise grows as the root of the steps that a fork is long.
GapSettings long_gap_settings(const Policy& policy, int64_t steps);
inline constexpr double kYoungSteps = 400;  // a run's first ones: its offset is almost nothing
// By how many per cent of the loss an offset measured at `step` may be from its level: by as much
// as that level, since a scale that has gone wrong multiplies it, but at least by the tolerance; by
// what it may have grown since the level's windows as the run learned; and by what few windows do
// not tell.
double offset_allowed(const Watch& watch, const Policy& policy, int64_t step);
GapSettings offset_settings(const Policy& policy, double allowed_percent);
// A window as the detector reads it; D is 0 where none was measured.
GapSample gap_sample(const Core& core, const WindowState& window);
// The R below which windows before an alarm have not added to it: a quarter of the suspicion.
double risen_evidence(const Policy& policy);
// What a mean gap may be: the tolerance, or what was accepted as the run's own.
double tolerated_percent(const Core& core);

}  // namespace gnomon::decide
