// A ledger as gnomond would have left it of a simulated run: the events, what the decision core
// made of them under the policy, and nothing else.
#pragma once

#include <filesystem>

#include "tests/decide/simulated_run.h"

namespace gnomon::cli {

// `policy` is the run's own. The core decides again from the events of `run`.
void write_ledger(const decide::SimulatedRun& run, const decide::Policy& policy,
                  const std::filesystem::path& file);

}  // namespace gnomon::cli
