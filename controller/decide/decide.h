// The decision core: a pure function from (state, event, policy, now) to (state, effects, reason),
// without clock, thread or I/O. The daemon, the backtest and the tests run this very code.
#pragma once

#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

struct Outcome {
  State state;
  std::vector<Effect> effects;
  std::string reason;  // one sentence; empty when nothing happened
};

// `now` in seconds since the epoch; only differences matter. Unknown or late events (a result of a
// closed window, an old attempt's step) leave the state as it is and say so in `reason`; so do
// events with steps or attempts below 0 or anything above 10^15, but for a replay's result, which
// counts as a failed replay then.
Outcome decide(State state, const Event& event, const Policy& policy, double now);

// The same, changing the state where it stands, for whoever plays millions of events. When it
// throws, the state is to be thrown away.
struct Consequences {
  std::vector<Effect> effects;
  std::string reason;
};
Consequences decide_in_place(State& state, const Event& event, const Policy& policy, double now);

// When the next Tick is due, in seconds since the epoch; +infinity when nothing has a deadline.
double next_deadline(const State& state);

// The policy's mode, or the one an operator has ordered for a time.
Mode mode_in_force(const State& state, const Policy& policy);

// Overrides and open directives: the core has at most one directive of its own open. An operator's
// is issued at once beside it, so that pause, resume and stop always get through; the trainer
// carries all of them out in the order of their numbers, and so the operator's word is the last. Of
// the operator's, at most one pause or resume, one stop, one checkpoint_now and one set_plan are
// open: the opposite order or a newer plan ends (EndDirective) the unanswered one before it, a
// repetition is refused. The way back from an operator's plan waits for the core's open directive.
//
// Why an override makes no sense now, in a sentence for people; empty when it is accepted. A plan
// must be known to parse and to fit the run's sites.
std::string why_not(const State& state, const OperatorOverride& asked);

// Events and states as JSON, for the ledger. state_from_json(state_to_json(s)) == s, byte for byte
// when written again. A state of another version is read, too: members that its parts lack keep
// their defaults, and others are left out.
std::string event_type(const Event& event);  // "step_reported"
std::string event_to_json(const Event& event);
Event event_from_json(const std::string& type, const std::string& json);
// The report of a step, from its row. `body`: the event's own JSON, which is kept where a row
// cannot hold its numbers.
StepReported step_event(const StepNumbers& step, const std::optional<std::string>& body = {});
std::string effect_type(const Effect& effect);  // "open_window"
std::string effect_to_json(const Effect& effect);
std::string state_to_json(const State& state);
State state_from_json(const std::string& json);

}  // namespace gnomon::decide
