// Health of the data and of training itself, whatever the precision: batches that come again, a
// loss that collapses, a held-out loss that rises while the training loss falls. Each is said once,
// in a sentence; nothing else follows.
#pragma once

#include "controller/decide/core.h"

namespace gnomon::decide {

// Takes a finite step into account.
void note_health(Core& core, const StepReported& step);
// The run learns its text by heart: the training loss is far below the lowest held-out loss that
// BF16 has reached. What rises then is no instability. `seen` says where it was noticed.
bool note_overfitting(Core& core, double lowest_held_out, const std::string& seen);
// Another attempt takes some batches again.
void forget_batches(State& state);

}  // namespace gnomon::decide
