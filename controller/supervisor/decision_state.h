// The decision core's state as the ledger has it: a cache of the run's events. Most step reports
// lead to nothing, and writing the state for each of them would cost more than all else together.
// So `decision_state` may be behind: it is the state after event `seq`, and the events after that
// one are applied again, each with the time at which it was recorded and under the policy that was
// in force. A state that is missing, cannot be read, or does not fit the run's events is computed
// again from the first event: the core is a pure function of its events.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "controller/auth/http_error.h"
#include "controller/decide/decide.h"
#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon {

// The run's state can neither be read nor computed: calls that need it are refused (503),
// everything else goes on.
class RunSetAside : public HttpError {
 public:
  RunSetAside(const std::string& label, std::string reason);
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

struct StateOnRecord {
  decide::State state;
  int64_t seq = 0;  // of the newest event that it contains
  // Steps that the sums on record (ledger::step_totals) do not have yet.
  std::vector<StepRow> uncounted;
  // Why the state that was written down was of no use; empty: it was used.
  std::string rebuilt_because;
};

// Called for effects that a step report has now and had not when it was recorded, which a newer
// version of the core may have. `seq` is the event's, `time` when it was recorded. Not called for
// effects that are on record, and not for other events: their effects were committed with them.
using LateEffects =
    std::function<void(const std::vector<decide::Effect>& effects, int64_t seq, double time)>;

// Nothing where the run has neither state nor event. `policy` is the one in force now. Throws
// RunSetAside.
std::optional<StateOnRecord> state_on_record(Connection& connection, int64_t run,
                                             const decide::Policy& policy,
                                             const LateEffects& late = {});

// True when a policy that is not on record may be taken to have been the oldest one that is:
// ledgers of before the order of policies and events was recorded do not have it.
enum class UnknownPolicies { kRefused, kGuessed };
// Called after each event.
using EachEvent = std::function<void(int64_t seq, const decide::State& state,
                                     const std::vector<decide::Effect>& effects)>;
// From the run's first event, whatever is written down. Throws RunSetAside.
StateOnRecord rebuilt_state(Connection& connection, int64_t run, const decide::Policy& policy,
                            UnknownPolicies unknown = UnknownPolicies::kRefused,
                            const EachEvent& each = {});

}  // namespace gnomon
