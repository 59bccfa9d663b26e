// The decision core's state as the ledger has it. Most step reports lead to nothing, and writing
// the state for each of them would cost more than all else together. So `decision_state` may be
// behind: it is the state after event `seq`, and of the events after that one, all of them step
// reports without effects, the core is told again. That gives the same state, because the core is
// a pure function of what it is told.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "controller/decide/decide.h"
#include "protocol/messages.h"
#include "storage/ledger_connection.h"

namespace gnomon {

struct StateOnRecord {
  decide::State state;
  int64_t seq = 0;  // of the newest event that it contains
  // Of the events after the one that is written down with the state, which have gone into it.
  std::vector<StepReport> told;
};

// Called for effects that an event had now and not when it was recorded, which a newer version of
// the core may have. `seq` is the event's, `time` when it was recorded.
using LateEffects =
    std::function<void(const std::vector<decide::Effect>& effects, int64_t seq, double time)>;

// Nothing where the run has no state yet. Throws Error for rows that cannot be read.
std::optional<StateOnRecord> state_on_record(Connection& connection, int64_t run,
                                             const decide::Policy& policy,
                                             const LateEffects& late = {});

}  // namespace gnomon
