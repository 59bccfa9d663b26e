#include "tests/robustness/replay_core.h"

namespace gnomon::robustness {

void replay_core(const cli::LedgerView& view, const std::string& ledger, int64_t run,
                 const decide::Policy& policy,
                 const std::function<void(const cli::RecordedEvent&, const decide::State&,
                                          const std::vector<decide::Effect>&)>& each) {
  decide::State state;
  for (const cli::RecordedEvent& event : cli::recorded_run(view, run, ledger).events) {
    const std::vector<decide::Effect> effects =
        decide::decide_in_place(state, event.event, policy, event.time).effects;
    each(event, state, effects);
  }
}

}  // namespace gnomon::robustness
