// What contains a fault: sites or the whole run in BF16, or a hold; and the probes that lead out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

// Why no further action is taken but a hold; empty: one may be.
std::string limit_of_actions(const Core& core);
// The sites that a containment has in BF16 while the others are in FP8.
std::vector<std::string> pinned_sites(const State& state);
// The containment that a rung and its plan lead to.
void contain(Core& core, ActionName rung, const std::vector<std::string>& sites,
             int64_t plan_version);
// Takes the whole run to BF16 from its newest step on, because of `seen`: nothing was blamed,
// nothing is rolled back. With `holds`, or where the limit of automatic actions is reached, pauses
// it instead.
void leave_fp8(Core& core, const std::string& seen, boost::json::object evidence, bool holds);
// Pauses the run until a person lets it go on, or stops it.
void hold(Core& core, const std::string& why, DirectiveKind directive = "pause");
// An attempt that began while the run was on hold is paused too, since its trainer may know nothing
// of the hold: at once, or when what keeps the core from ordering (a silence, a plan or a mode by
// hand, another directive) is over.
void hold_if_due(Core& core);
// The containment of a run that stands in this plan: none in its own.
std::optional<Containment> standing_in(const State& state, int64_t plan_version);
// What the run would stand in if no operator interfered.
int64_t wanted_plan(const State& state);
// What a verifier, or any source in the steps first to last, has said in probes is forgotten.
void forget_probes_of(State& state, const std::string& verifier);
void forget_probes_of_steps(State& state, int64_t first, int64_t last);

}  // namespace gnomon::decide
