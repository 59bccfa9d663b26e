// What several sources say of one window's BF16 replay, and whom of them to believe.
#pragma once

#include <optional>
#include <utility>

#include "controller/decide/core.h"

namespace gnomon::decide {

Witness witness_of(const ReplayFinished& replay);
// How far apart honest sources on different devices may be, per cent of the loss.
double noise_between(const Core& core);
// Apart by more, one of them is wrong, per cent: a replay that is not exact strays by no more than
// windows do.
double noise_that_names(const Core& core);

// The first two that agree within the noise, by their places, where everybody else says the same as
// both or contradicts both. (Of tokens a trainer contradicts nobody.)
std::optional<std::pair<size_t, size_t>> agreeing(const WindowState& window, double noise_percent);
// The trainer's own reported losses bear such a D out, and stand out themselves.
bool reports_name(const std::optional<double>& reports_percent, double d_percent);
// The one whose gap over the ceiling the trainer's own reported losses bear out: that is the
// trainer's word, too. (That they do not bear one out says less: damage may show late.)
std::optional<size_t> reported(const Core& core, const WindowState& window);
// The one of two whose answers could be those of an honest verifier, where the other's could not.
std::optional<size_t> plausible_of_two(const Core& core, const WindowState& window);

}  // namespace gnomon::decide
