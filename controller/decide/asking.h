// How what triage wants to know is ordered: which replay, from which checkpoint, and from whom.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

// The newest checkpoint well before a step, saved after the last change of plan; for `far` the
// oldest such that a replay of an incident may begin at. Null: there is none.
const KnownCheckpoint* incident_start(const State& state, int64_t step, int64_t plan_version,
                                      bool far = false);
// True of a nudged replay of a spike, and of its BF16 from afar: they begin further back, so that
// the weights have time to part.
bool from_afar(const TriageEvidence& evidence, ReplayRole kind, int64_t seed);
// Whose BF16 replay the open case rests on; null: it is gone.
const WindowState* window_of_bf16(const State& state);
bool is_under_way(const State& state, const TriageTest& test);
// Nobody can do the test: that is its answer.
void answer_failed(Core& core, const TriageTest& test);
// Who answered `same` in the open case; empty = nobody yet.
std::string who_answered_same(const State& state);
// Who found other bits than the run's, first; empty = nobody.
std::string who_differs(const State& state);
// Verifiers that were asked for the run's own bits.
std::vector<std::string> asked_about_bits(const State& state);
void order_test(Core& core, const TriageTest& test);

}  // namespace gnomon::decide
