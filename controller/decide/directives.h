// The directives that are open: issued, numbered, withdrawn. The core has at most one of its own;
// operators' stand beside it, and the trainer carries all of them out in the order of their
// numbers. What the trainer answers is directive_answers.h's.
#pragma once

#include <optional>
#include <string>

#include "controller/decide/core.h"

namespace gnomon::decide {

std::string directive_name(const PendingDirective& directive);  // "Directive 3 (rollback to 200)"
// Issues a directive of the core's own and remembers it as pending; returns its number.
int64_t issue(Core& core, PendingDirective pending, const std::string& plan,
              const std::string& why);
// An operator's: it stands beside the core's own.
int64_t issue_override(Core& core, PendingDirective pending, const std::string& plan,
                       const std::string& why);
// The directive is not to be carried out any more; a report that it was is still accepted.
void withdraw(Core& core, const PendingDirective& directive, const std::string& reason);
// Takes one off the list of those that are open, or of those that have expired.
std::optional<PendingDirective> extract_open(State& state, int64_t number);
std::optional<PendingDirective> extract_expired(State& state, int64_t number);
// True when an order to stop is unanswered.
bool stop_is_open(const State& state);
// The trainer lives, or begins again.
void note_steps(State& state);
void note_new_attempt(Core& core);

template <class Visit>
void each_open(State& state, Visit visit) {
  if (state.directive) visit(*state.directive);
  for (PendingDirective& open : state.operator_directives) visit(open);
}

}  // namespace gnomon::decide
