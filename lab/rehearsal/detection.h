// What detectors make of recorded runs: the D of a run that was only observed, fed to any detector
// of gap_detector.h as the decision core would feed it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/gap_detector.h"
#include "lab/rehearsal/trace.h"

namespace gnomon::rehearsal {

// What a trace's setup says of the run.
struct RunLabel {
  std::string revision;  // of what recorded it; "unknown" before 29 November 2026
  std::string configuration;
  std::string fault;  // "none", or kind:strength
  int64_t seed = 1;
  bool watched = true;
  bool fp8 = true;   // its plan has rules; without any the whole run is in BF16
  std::string mode;  // observe, enforce
  int64_t steps = 0;
  int64_t tokens_per_step = 0;
  int64_t burn_in_steps = 0;                // of its policy
  int64_t windows_every = 0;                // of its policy; 0: by budget
  std::optional<int64_t> fault_from;        // first step that something is wrong in
  bool lies = false;                        // a verifier does; nothing else is wrong then
  std::vector<std::string> guilty_sites;    // of faults of numerics and kernel
  std::string origin;                       // fault_origin_name of the first; empty: no fault
  std::vector<std::string> right_verdicts;  // what triage should find
};
RunLabel label_of(const Trace& trace);

// Shadow windows that were measured and that the detector may see, oldest first.
struct Series {
  std::vector<decide::GapSample> samples;
  // The first sample whose window the fault has reached; samples.size() when none.
  size_t first_faulty = 0;
  // The first sample whose window it fills, steps that it spares left aside.
  size_t first_filled = 0;
};
Series series_of(const Trace& trace);

struct Detected {
  int64_t healthy_windows = 0;
  int64_t false_alarms = 0;      // in them; after each the evidence begins anew
  std::optional<int64_t> delay;  // windows from the fault's first to the alarm's, both counted
};
Detected replay_detector(const Series& series, const decide::GapSettings& settings);

// The detector of this kind with the least threshold (of `eprocess`: the fewest windows between
// false alarms) at which it raises at most `false_alarms` in the healthy windows of all the series.
decide::GapSettings at_equal_false_alarms(decide::GapSettings settings,
                                          const std::vector<Series>& all, int64_t false_alarms);

}  // namespace gnomon::rehearsal
