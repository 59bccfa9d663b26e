#include "cli/backtest.h"

#include <fmt/format.h>

#include <map>
#include <set>
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
    return decide::StepReported{step->second.attempt, step->second.step, step->second.plan_version,
                                step->second.loss, step->second.grad_norm};
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

std::map<int64_t, std::vector<BacktestDecision>> decide_again(
    const std::vector<EventRow>& events, const std::map<StepKey, StepRow>& steps,
    const decide::Policy& policy, const std::string& ledger_file) {
  std::map<int64_t, std::vector<BacktestDecision>> by_event;
  decide::State state;
  for (const EventRow& row : events) {
    decide::Event event = read_event(row, steps, ledger_file);
    decide::Outcome outcome = decide::decide(std::move(state), event, policy, row.time);
    state = std::move(outcome.state);
    for (const decide::Effect& effect : outcome.effects) {
      const auto* made = std::get_if<decide::RecordDecision>(&effect);
      if (made == nullptr) continue;
      by_event[row.seq].push_back({row.seq, row.time, made->kind, made->verdict, made->action,
                                   made->enforced, made->step, made->sites, made->sentence});
    }
  }
  return by_event;
}

}  // namespace

BacktestResult backtest(const LedgerView& ledger, const RunRow& run, const decide::Policy& policy,
                        const std::string& ledger_file) {
  std::map<StepKey, StepRow> steps;
  for (const StepRow& step : ledger.steps(run.id)) steps[{step.attempt, step.step}] = step;
  std::vector<EventRow> events = ledger.events(run.id);
  auto recorded = recorded_by_event(ledger.decisions(run.id));
  auto replayed = decide_again(events, steps, policy, ledger_file);

  BacktestResult result;
  result.events = static_cast<int64_t>(events.size());
  std::set<int64_t> seqs;
  for (const auto& [seq, list] : recorded) {
    seqs.insert(seq);
    result.recorded += static_cast<int64_t>(list.size());
  }
  for (const auto& [seq, list] : replayed) {
    seqs.insert(seq);
    result.replayed += static_cast<int64_t>(list.size());
  }
  for (int64_t seq : seqs) {
    if (!same_conclusion(recorded[seq], replayed[seq])) {
      result.differences.push_back({recorded[seq], replayed[seq]});
    }
  }
  return result;
}

}  // namespace gnomon::cli
