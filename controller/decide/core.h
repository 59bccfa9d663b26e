// What the parts of decide() share: the state, the policy, and the list of effects that grows. Each
// part has a header of its own; calls go from decide.cc downwards, and never back
// (docs/ARCHITECTURE.md has the order). What a part below wants done afterwards it leaves in Core.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/events.h"
#include "controller/decide/policy.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

struct Core {
  State& s;
  const Policy& policy;  // with the mode that an operator may have set
  double now = 0;        // seconds since the epoch
  std::vector<Effect> effects = {};
  std::string reason = {};
  // The event touches nothing that checkpoints are kept for.
  bool keeps_checkpoints = false;
  // Left to decide.cc: something that the open case waits for is known, so that it asks on; a case
  // has ended, so that what had waited for it goes on.
  bool case_continues = false;
  bool case_ended = false;

  // A decision for the log with what is the same in all of them filled in.
  RecordDecision& record(DecisionKind kind, std::string sentence,
                         const boost::json::object& evidence);
  void explain(const std::string& sentence);
  bool enforcing() const { return policy.mode == Mode::kEnforce; }
  bool held() const { return s.containment && s.containment->rung == "hold"; }
  // By whose order an alarm leads to nothing now; empty when no operator interferes and the run was
  // not told to stop.
  std::string muted() const;
};

std::string until(double expires_at);  // "until 2026-11-21 13:00:00 UTC"
// "tolerance 0.50%" and the like: a share in per cent with two digits, or "not finite".
std::string percent(double value);
boost::json::value number(double value);                        // null when not finite
boost::json::value number(const std::optional<double>& value);  // null when there is none, too
boost::json::array names(const std::vector<std::string>& list);

}  // namespace gnomon::decide
