// What tests ask of a rehearsed run's trace.
#pragma once

#include <string>
#include <vector>

#include "lab/rehearsal/trace.h"

namespace gnomon::test {

// The actions that were enforced, in their order.
inline std::vector<std::string> actions_of(const rehearsal::Trace& trace) {
  std::vector<std::string> result;
  for (const auto& each : trace.decisions) {
    if (each.decision.kind == "action" && each.decision.enforced) {
      result.push_back(each.decision.action);
    }
  }
  return result;
}

}  // namespace gnomon::test
