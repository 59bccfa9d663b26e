// The rows of triage (triage_table.cc), and the evidence as they read it. Private to triage_*.cc.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/decide/triage.h"

namespace gnomon::decide {

inline constexpr double kDeviations = 3;  // deviations of D that are no chance

struct TriageView {
  const TriageEvidence& evidence;
  const TriageRules& rules;

  bool of_step() const { return evidence.finding.has_value(); }
  bool of_audit() const { return evidence.trigger == "audit"; }
  bool of_offset() const { return evidence.trigger == "offset"; }
  // What was answered; null before, and where nothing like it was asked.
  const TriageAnswer* answer(ReplayRole kind, int64_t seed = 0) const;
  // True when the replay of a spike shows the spike too.
  bool suffers(const SpikeComparison& seen) const;
  static bool reproduces(const TriageAnswer* known) {
    return known != nullptr && known->reproduction && known->reproduction->reproduces;
  }
  // The replay under the run's own plan that speaks first: one that does it again, if any does.
  const TriageAnswer* plain() const;
  // A sentence's beginning: what replays under the run's own plan gave.
  std::string seen_same() const;
};

// triage_machines.cc: whose machine, or whose data, is wrong?
// One verifier says that the run's own plan does not do it again. Another one is asked too.
std::optional<TriageStep> ask_elsewhere(const TriageView& v, const TriageAnswer& same);
// The run's plan does it again to the bit, as one verifier says, and no nudged replay does: chance,
// or the run's bits are wrong and that verifier only repeats them. Another one is asked first.
std::optional<TriageStep> ask_for_echo(const TriageView& v);

inline bool is_nudged(ReplayRole kind) { return kind == "fp8_nudged" || kind == "bf16_nudged"; }

// triage_chance.cc: do nudged replays of both arms part as the plain ones did?
bool asks_chance(const TriageView& v);
std::optional<TriageStep> ask_chance(const TriageView& v);
// The nudged answers of any verifier without whose word chance would still be possible.
std::vector<TriageTest> ruled_out_chance(const TriageView& v);
// Both arms were replayed, and FP8 ended higher each time.
bool parts_by_nudges(const TriageView& v);

// triage_seconds.cc: a verdict that rests on single answers has them given again by others first.
struct SecondOpinion {
  std::optional<TriageStep> next;      // whom to ask, or who stands alone
  std::optional<TriageTest> disputed;  // two contradict each other about it, and nobody can tell
  std::string sentence;                // of that
};
// Nothing in it where nobody contradicts what the step rests on.
SecondOpinion ask_second_sources(const TriageView& v, const TriageStep& step);
// Others were asked to do an answered test again, and none could.
bool nobody_repeats(const TriageView& v, const TriageTest& test);
// Takes the end that speaks for chance where two sources agree about a nudged replay: a lie within
// the noise convicts nobody.
void weigh_seconds(TriageEvidence& evidence, const TriageRules& rules);

}  // namespace gnomon::decide
