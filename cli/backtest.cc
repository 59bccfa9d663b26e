#include "cli/backtest.h"

#include <fmt/format.h>

#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "base/errors.h"
#include "controller/decide/decide.h"

namespace gnomon::cli {
namespace {

using StepKey = std::pair<int64_t, int64_t>;

decide::Event read_event(const EventRow& row, const std::map<StepKey, StepRow>& steps,
                         const std::string& ledger_file) {
  if (row.type == "step_reported") {
    auto step = steps.find({row.attempt.value_or(0), row.step.value_or(0)});
    if (step == steps.end()) {
      throw FormatError(ledger_file, 0,
                        fmt::format("event {} for step {} of attempt {}, which is not in `steps`",
                                    row.seq, row.step.value_or(0), row.attempt.value_or(0)),
                        "every reported step in `steps`");
    }
    return decide::StepReported{step->second.attempt,      step->second.step,
                                step->second.plan_version, step->second.loss,
                                step->second.grad_norm,    step->second.step_seconds};
  }
  try {
    return decide::event_from_json(row.type, row.body);
  } catch (const Error& error) {
    throw FormatError(ledger_file, 0, fmt::format("event {}: {}", row.seq, error.what()),
                      "an event of this version");
  }
}

std::map<int64_t, std::vector<BacktestDecision>> recorded_by_event(
    const std::vector<DecisionRow>& decisions) {
  std::map<int64_t, std::vector<BacktestDecision>> by_event;
  for (const DecisionRow& row : decisions) {
    by_event[row.event_seq].push_back({row.event_seq, row.time, row.kind, row.verdict, row.action,
                                       row.enforced, row.step, row.sites, row.sentence});
  }
  return by_event;
}

bool same_conclusion(const std::vector<BacktestDecision>& a,
                     const std::vector<BacktestDecision>& b) {
  auto key = [](const BacktestDecision& d) {
    return std::tie(d.kind, d.verdict, d.action, d.enforced, d.step, d.sites);
  };
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (key(a[i]) != key(b[i])) return false;
  }
  return true;
}

// One policy, event after event.
class Replica {
 public:
  explicit Replica(decide::Policy policy) : policy_(std::move(policy)) {}

  std::vector<decide::Effect> hear(const decide::Event& event, double time) {
    decide::Outcome outcome = decide::decide(std::move(state_), event, policy_, time);
    state_ = std::move(outcome.state);
    return std::move(outcome.effects);
  }

 private:
  decide::Policy policy_;
  decide::State state_;
};

// What the verifiers and the trainer would get to see of the effects.
std::vector<std::string> orders(const std::vector<decide::Effect>& effects) {
  std::vector<std::string> list;
  for (const decide::Effect& effect : effects) {
    if (std::holds_alternative<decide::OpenWindow>(effect) ||
        std::holds_alternative<decide::OrderReplay>(effect) ||
        std::holds_alternative<decide::IssueDirective>(effect)) {
      list.push_back(decide::effect_to_json(effect));
    }
  }
  return list;
}

std::vector<BacktestDecision> decisions_in(const std::vector<decide::Effect>& effects,
                                           const EventRow& row) {
  std::vector<BacktestDecision> list;
  for (const decide::Effect& effect : effects) {
    const auto* made = std::get_if<decide::RecordDecision>(&effect);
    if (made == nullptr) continue;
    list.push_back({row.seq, row.time, made->kind, made->verdict, made->action, made->enforced,
                    made->step, made->sites, made->sentence});
  }
  return list;
}

}  // namespace

BacktestResult backtest(const LedgerView& ledger, const RunRow& run, const decide::Policy& policy,
                        const std::string& ledger_file) {
  std::map<StepKey, StepRow> steps;
  for (const StepRow& step : ledger.steps(run.id)) steps[{step.attempt, step.step}] = step;
  auto recorded = recorded_by_event(ledger.decisions(run.id));
  Replica as_recorded(decide::Policy::parse(run.policy, "the run's own policy"));
  Replica other(policy);

  BacktestResult result;
  int64_t newest_step = 0;
  for (const EventRow& row : ledger.events(run.id)) {
    decide::Event event = read_event(row, steps, ledger_file);
    if (row.type == "step_reported") newest_step = row.step.value_or(newest_step);
    const auto own = as_recorded.hear(event, row.time);
    const auto effects = other.hear(event, row.time);
    const auto replayed = decisions_in(effects, row);
    ++result.events;
    result.recorded += static_cast<int64_t>(recorded[row.seq].size());
    result.replayed += static_cast<int64_t>(replayed.size());
    if (!same_conclusion(recorded[row.seq], replayed)) {
      result.differences.push_back({recorded[row.seq], replayed});
    }
    if (!same_conclusion(recorded[row.seq], decisions_in(own, row))) {
      result.parting = {row.seq, newest_step,
                        "the ledger was decided by another version of gnomond, or under another "
                        "policy than the run's newest"};
    } else if (orders(effects) != orders(own)) {
      result.parting = {row.seq, newest_step,
                        "this policy would have asked for other windows, replays or directives "
                        "than the recorded ones"};
    }
    if (result.parting) break;
  }
  return result;
}

}  // namespace gnomon::cli
