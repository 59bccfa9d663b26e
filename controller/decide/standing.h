// What the run's verdict (run_verdict.h) is made of, kept while events come in.
#pragma once

#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

// The trainer has reported something; before the event is handled.
void note_report(Core& core, const Event& event);
// A window was opened that ends at this step.
void note_planned(State& state, int64_t end);
// A window's BF16 replay gave a D that is judged.
void note_measured(State& state, const WindowState& window);
// A replay was answered: while a case is open that is enough, though no window is measured.
void note_answered(State& state);
// Harm was found and waits for an answer: `what` is a verdict's name, or "alarm".
void note_harm(State& state, const std::string& what);
// Harm is over: a window was quiet, or a person let the run go on. Not while the answer to it is on
// its way.
void clear_harm(State& state);
// The run's condition after an event.
void note_standing(Core& core);

}  // namespace gnomon::decide
