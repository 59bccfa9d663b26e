// Which windows the detectors' evidence is made of, so that one that should not have counted can be
// taken out again.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

// BF16 shares the spike at this step.
void note_generic_spike(State& state, int64_t step);
// A spike that BF16 shares lies in the window: what follows it diverges by chance, and the window
// is no evidence.
std::optional<int64_t> generic_spike_in(const State& state, const WindowState& window);
// After observe_gap: whose sample it was.
void record_evidence_window(const GapState& gap, std::vector<EvidenceWindow>& seen,
                            const WindowState& window, double statistic);
// The step up to which the gaps say nothing against FP8, for an alarm that windows before it have
// added to (evidence of at least `risen` before it): the end of the last window after which the
// evidence was at most 1, or else at its least, among those that are known one by one. Nothing for
// other alarms.
std::optional<int64_t> evidence_rises_after(const State& state, int64_t alarm, double risen);
// The verifier on whose unconfirmed windows alone an alarm of many windows rests; empty = none.
std::string rests_on(const Core& core, const WindowState& window);
// True when that is, or may become, this step.
bool evidence_may_rise_after(const State& state, int64_t step);
// What the windows that hold a step have shown is forgotten. Of them those can be that are among
// the newest kGapNewestMax.
void forget_spiked(Core& core, int64_t step);
// What a window, or all windows of a verifier, have shown is forgotten; of a verifier with windows
// before the newest kGapNewestMax what was learned from those is, too.
void forget_window(Core& core, int64_t window);
void forget_verifier(Core& core, const std::string& verifier);
// Steps after `base` are gone and may be measured again: their windows count once.
void forget_evidence_after(Core& core, int64_t base);

}  // namespace gnomon::decide
