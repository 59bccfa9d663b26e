// A recorded run, told to a fresh decision core again.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/ledger_view.h"
#include "controller/decide/decide.h"
#include "lab/backtest/recorded_run.h"

namespace gnomon::robustness {

// Decides a run again from the ledger's file `ledger`, which `view` reads. `each` is called for
// every event, in order, with the state and the effects that it leads to.
void replay_core(const cli::LedgerView& view, const std::string& ledger, int64_t run,
                 const decide::Policy& policy,
                 const std::function<void(const cli::RecordedEvent&, const decide::State&,
                                          const std::vector<decide::Effect>&)>& each);

}  // namespace gnomon::robustness
