// What is remembered of each verifier, and when one of its windows is measured twice.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "controller/decide/core.h"

namespace gnomon::decide {

// A verifier's windows for each one that a second source measures, too.
inline constexpr int64_t kCheckEvery = 16;

inline constexpr size_t kVerifiersMax = 64;
// Per cent. The least difference in 1,250 healthy windows of the detection study was 0.00025.
inline constexpr double kScaleFreedom = 6;  // from which s is known well enough to be spoken of
inline constexpr double kNoDifference = 1e-6;

// Says that a shadow is to be measured a second time; and why, where no honest replay answers so.
struct CheckDue {
  bool check = false;
  bool odd = false;  // not by routine
  std::string suspicion;
};

// Remembers a shadow's answer, the newest witness of its window.
CheckDue note_answer(Core& core, const WindowState& window, const ReplayFinished& replay);
bool believed(const State& state, const std::string& verifier);
// Those that have answered and are believed, sorted.
std::vector<std::string> believed_verifiers(const State& state);
// Somebody else than this one is believed.
bool others_believed(const State& state, const std::string& verifier);
const VerifierRecord* find_record(const State& state, const std::string& verifier);
// Counts the witness's answers in a row without any difference between FP8 and BF16.
void note_difference(State& state, const Witness& witness);
// What this witness has answered again and again that no honest one does; empty where it has not.
std::string implausible(const State& state, const Witness& witness);
void forget_record(State& state, const std::string& verifier);
// A window of the verifier was measured twice, or nobody could do so.
void note_checked(State& state, const std::string& verifier);
// Notes that its replay under the run's own plan gave the run's bits, or that it cannot be believed
// to do so any more: other bits came, or it is of another device.
void note_exact(State& state, const std::string& verifier, bool exact);
// It found other bits than the run's, and nobody could say who was wrong.
void note_unsettled_bits(State& state, const std::string& verifier);
bool trainer_can_replay(const State& state);
// Believed verifiers that compute as the run does, as far as that was seen (ask_own_fp8).
std::vector<std::string> shown_exact(const State& state);
// Asks for the run's own FP8: one that lacks the run's fault would have innocent sites blamed.
// Believed verifiers compute as the run does where an audit or a `same` replay of the open case has
// shown it: by its bits, or, where nobody has these, by the damage that was repeated. Where none
// has, the trainer is asked, if it can replay.
void ask_own_fp8(const State& state, OrderReplay& wanted);
// So many windows of the verifier from now on are measured twice.
void check_next(State& state, const std::string& verifier, int64_t windows);
// Per cent that the trainer's own reported losses lie over the replay's, at the window's end.
std::optional<double> reports_over(const ReplayFinished& replay);
// The largest scale that the detector may learn; 0 = no bound yet.
double scale_most(const Core& core);
// After a window: says that the scale has grown, and has the verifiers checked.
void note_scale(Core& core);

}  // namespace gnomon::decide
