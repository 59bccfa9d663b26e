#include "controller/decision_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/errors.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// All reports of steps above `seq`, in the order in which the core heard them.
std::vector<ledger::StepEvent> steps_heard_after(Connection& connection, int64_t run, int64_t seq) {
  std::vector<ledger::StepEvent> steps = ledger::steps_after(connection, run, seq);
  for (const ledger::EventRow& row : ledger::events_after(connection, run, seq)) {
    std::optional<StepReport> step;
    if (row.type == "step_reported") {
      step = ledger::find_step(connection, run, row.attempt.value_or(0), row.step.value_or(0));
    }
    if (!step) {
      throw Error(fmt::format("event {} ({}) follows the decision state of event {}", row.seq,
                              row.type, seq));
    }
    steps.push_back({row.seq, *step});
  }
  std::ranges::sort(steps, {}, &ledger::StepEvent::seq);
  return steps;
}

}  // namespace

std::optional<StateOnRecord> state_on_record(Connection& connection, int64_t run,
                                             const decide::Policy& policy,
                                             const LateEffects& late) {
  const std::optional<ledger::StateRow> row = ledger::load_state(connection, run);
  if (!row) return std::nullopt;
  StateOnRecord known{decide::state_from_json(row->body), row->seq, {}};
  for (const auto& [seq, step] : steps_heard_after(connection, run, row->seq)) {
    const decide::Consequences now =
        decide::decide_in_place(known.state,
                                decide::StepReported{step.attempt, step.step, step.plan_version,
                                                     step.loss, step.grad_norm, step.step_seconds},
                                policy, step.time);
    known.seq = seq;
    known.told.push_back(step);
    if (late && !now.effects.empty()) late(now.effects, seq, step.time);
  }
  return known;
}

}  // namespace gnomon
