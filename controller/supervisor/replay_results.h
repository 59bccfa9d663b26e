// What a replay's result is compared with: the steps that the trainer itself reported, and the
// result on record when one is handed in again.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "controller/decide/events.h"
#include "protocol/records.h"
#include "storage/ledger_windows.h"

namespace gnomon {

// Equal bits, as far as the ledger keeps them: neither the payload of a NaN nor the sign of a zero.
bool same_bits(double a, double b);

// Joins a result with what the trainer reported: `run_steps` are the window's steps of the window's
// attempt, as far as they are reported. Losses, gradient norms and weight hashes are compared bit
// for bit.
decide::ReplayFinished join_replay(const ReplayOrder& replay, const ReplayResult& result,
                                   const std::vector<StepRow>& run_steps,
                                   const Fingerprint& run_fingerprint, const std::string& verifier,
                                   bool on_trainer);

// Returns the first member in which two results differ, in words; empty when none does. `known` is
// as the ledger has it. When they were sent makes no difference.
std::string difference(const ReplayResult& known, const ReplayResult& repeated);

}  // namespace gnomon
