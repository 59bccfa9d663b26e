#include "controller/decide/directives.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace gnomon::decide {
namespace {

constexpr size_t kExpiredDirectivesMax = 8;

PendingDirective& number_it(Core& core, PendingDirective& pending, const std::string& plan,
                            const std::string& why) {
  pending.number = core.s.next_directive++;
  pending.deadline = core.now + core.policy.directives.timeout_seconds;
  pending.attempt = core.s.attempt.number;
  pending.steps_since = false;
  pending.silence_recorded = false;
  if (pending.kind == "stop") core.s.stopping = true;
  core.effects.emplace_back(IssueDirective{pending.number, pending.kind, plan, pending.plan_version,
                                           pending.to_step, pending.checkpoint_uri, why});
  return pending;
}

std::optional<PendingDirective> extract(std::vector<PendingDirective>& list, int64_t number) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const PendingDirective& known) {
    return known.number == number;
  });
  if (found == list.end()) return std::nullopt;
  PendingDirective taken = std::move(*found);
  list.erase(found);
  return taken;
}

}  // namespace

std::string directive_name(const PendingDirective& directive) {
  std::string what = directive.kind;
  if (directive.kind == "rollback") what += fmt::format(" to step {}", directive.to_step);
  if (directive.kind == "set_plan") what += fmt::format(" {}", directive.plan_version);
  return fmt::format("Directive {} ({})", directive.number, what);
}

int64_t issue(Core& core, PendingDirective pending, const std::string& plan,
              const std::string& why) {
  if (core.s.directive) {
    const PendingDirective before = *core.s.directive;
    withdraw(core, before, fmt::format("Directive {} takes its place.", core.s.next_directive));
  }
  core.s.directive = std::move(number_it(core, pending, plan, why));
  return core.s.directive->number;
}

int64_t issue_override(Core& core, PendingDirective pending, const std::string& plan,
                       const std::string& why) {
  pending.purpose = "override";
  core.s.operator_directives.push_back(number_it(core, pending, plan, why));
  return core.s.operator_directives.back().number;
}

void withdraw(Core& core, const PendingDirective& directive, const std::string& reason) {
  std::vector<PendingDirective>& expired = core.s.expired_directives;
  core.effects.emplace_back(EndDirective{directive.number, "expired", reason});
  if (directive.kind == "stop") core.s.stopping = false;
  if (expired.size() >= kExpiredDirectivesMax) expired.erase(expired.begin());
  expired.push_back(directive);
}

std::optional<PendingDirective> extract_open(State& s, int64_t number) {
  if (s.directive && s.directive->number == number) {
    std::optional<PendingDirective> own = std::move(s.directive);
    s.directive.reset();
    return own;
  }
  return extract(s.operator_directives, number);
}

std::optional<PendingDirective> extract_expired(State& s, int64_t number) {
  return extract(s.expired_directives, number);
}

bool stop_is_open(const State& s) {
  const auto stops = [](const PendingDirective& open) { return open.kind == "stop"; };
  return (s.directive && stops(*s.directive)) ||
         std::any_of(s.operator_directives.begin(), s.operator_directives.end(), stops);
}

void note_steps(State& s) {
  s.paused = false;
  each_open(s, [](PendingDirective& open) { open.steps_since = true; });
}

void note_new_attempt(Core& core) {
  core.s.stopping = stop_is_open(core.s);
  each_open(core.s, [&](PendingDirective& open) {
    open.steps_since = false;
    open.deadline = core.now + core.policy.directives.timeout_seconds;
  });
}

}  // namespace gnomon::decide
