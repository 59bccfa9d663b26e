#include "cli/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <chrono>
#include <limits>

#include "base/errors.h"
#include "base/progress.h"
#include "base/wall_clock.h"
#include "cli/json_output.h"
#include "cli/plan_precision.h"
#include "controller/decide/decide.h"
#include "protocol/json_text.h"

namespace gnomon::cli {
namespace {

constexpr const char* kBitFlip = "bit_flip";

void add_once(std::vector<std::string>& list, const std::string& value) {
  if (std::find(list.begin(), list.end(), value) == list.end()) list.push_back(value);
}

// A flipped bit stays in the weights until a rollback goes behind it; other faults act in their own
// steps only.
bool fault_felt_in(const InjectedFault& fault, const RunHistory& history, int64_t attempt,
                   int64_t first, int64_t last) {
  if (fault.kind != kBitFlip) return fault_acts_in(fault, first, last);
  for (const AttemptRow& row : history.attempts) {
    bool forgets = row.cause == "rollback" && row.base_step < fault.start_step;
    bool struck_before =
        std::any_of(history.steps.begin(), history.steps.end(), [&](const StepRow& step) {
          return step.attempt < row.attempt && step.step >= fault.start_step;
        });
    if (row.attempt <= attempt && forgets && struck_before) return false;
  }
  return last >= fault.start_step;
}

struct StepRange {
  int64_t attempt;
  int64_t first;
  int64_t last;
};

StepRange steps_of(const RunHistory& history, const DecisionRow& alarm) {
  for (const WindowRow& window : history.windows) {
    if (window.window == alarm.window) {
      return {window.attempt, window.start_step + 1, std::max(window.end_step(), alarm.step)};
    }
  }
  return {alarm.attempt, alarm.step, alarm.step};
}

const InjectedFault* fault_behind(const RunHistory& history, const StepRange& range) {
  for (const InjectedFault& fault : history.faults) {
    if (fault_felt_in(fault, history, range.attempt, range.first, range.last)) return &fault;
  }
  return nullptr;
}

int64_t count_windows_to_detect(const RunHistory& history, const InjectedFault& fault,
                                const DecisionRow& alarm) {
  int64_t before = 0;
  for (const WindowRow& window : history.windows) {
    bool verified = window.state == "quiet" || window.state == "alarm";
    bool earlier = window.window != alarm.window && window.closed_at.has_value() &&
                   *window.closed_at <= alarm.time;
    if (verified && earlier && window.kind != "probe" &&
        fault_felt_in(fault, history, window.attempt, window.start_step + 1, window.end_step())) {
      ++before;
    }
  }
  return before + 1;
}

// The decisions that follow from the first alarm: up to the next alarm, which begins another
// scenario.
void add_first_episode(const RunHistory& history, size_t alarm, RunSummary& summary) {
  for (size_t i = alarm; i < history.decisions.size(); ++i) {
    const DecisionRow& decision = history.decisions[i];
    if (i > alarm && decision.kind == "alarm") break;
    const bool of_training =
        decision.verdict.text().ends_with("stable_training");  // no case's verdict
    if (decision.verdict != "none" && !of_training) summary.verdict = decision.verdict;
    bool blames = decision.kind == "attribution" || decision.kind == "action";
    if (blames && !decision.sites.empty()) summary.blamed_sites = decision.sites;
    if (summary.action == "none" && decision.kind == "action" && decision.enforced) {
      summary.action = decision.action;
    }
  }
}

void judge_decisions(const RunHistory& history, RunSummary& summary) {
  std::optional<size_t> first_true;
  std::optional<size_t> first_any;
  for (size_t i = 0; i < history.decisions.size(); ++i) {
    const DecisionRow& decision = history.decisions[i];
    if (decision.verdict != "none") add_once(summary.verdicts, decision.verdict);
    if (decision.kind == "recovered") summary.recovered = true;
    if (decision.kind == "action" && decision.enforced) summary.actions.push_back(decision.action);
    if (decision.kind != "alarm") continue;
    ++summary.alarms;
    if (!first_any) first_any = i;
    const InjectedFault* fault = fault_behind(history, steps_of(history, decision));
    if (fault == nullptr) {
      summary.false_alarms += !history.faults.empty();
    } else if (!first_true) {
      first_true = i;
      summary.windows_to_detect = count_windows_to_detect(history, *fault, decision);
    }
  }
  summary.detected = first_true.has_value();
  if (first_true || first_any) {
    add_first_episode(history, first_true.value_or(first_any.value_or(0)), summary);
  }
}

void judge_plans(const RunHistory& history, RunSummary& summary) {
  PlanPrecisions precisions(history);
  for (const DirectiveRow& directive : history.directives) {
    if (directive.state != "applied") continue;
    if (directive.kind == "rollback") summary.rolled_back = true;
    if (!directive.plan.empty() && precisions.less_than_base(precisions.parse(directive.plan))) {
      summary.plan_changed = true;
    }
  }
  if (history.steps.empty()) return;
  const PlanPrecisions::Sites* last = precisions.of(history.steps.back().plan_version);
  summary.returned_to_fp8 =
      summary.plan_changed && last != nullptr && !precisions.less_than_base(*last);
}

int64_t count_steps_lost(const RunHistory& history) {
  int64_t lost = 0;
  for (const StepRow& step : history.steps) {
    for (const AttemptRow& next : history.attempts) {
      if (next.attempt <= step.attempt || next.base_step >= step.step) continue;
      lost += next.cause == "rollback";
      break;
    }
  }
  return lost;
}

// An attempt's steps follow its base without a hole: what is missing was trained but never arrived.
int64_t count_missing_steps(const RunHistory& history) {
  int64_t missing = 0;
  for (const AttemptRow& attempt : history.attempts) {
    int64_t reported = 0;
    int64_t newest = attempt.base_step;
    for (const StepRow& step : history.steps) {
      if (step.attempt != attempt.attempt) continue;
      ++reported;
      newest = std::max(newest, step.step);
    }
    missing += newest - attempt.base_step - reported;
  }
  return missing;
}

void sum_up_cost(const RunHistory& history, RunSummary& summary) {
  const RunRow& run = history.run;
  double last_time = run.registered_at;
  double step_seconds = 0;
  for (const StepRow& step : history.steps) {
    last_time = std::max(last_time, step.reported_at);
    step_seconds += step.step_seconds;
  }
  summary.wall_seconds = run.finished_at.value_or(last_time) - run.registered_at;
  // Not what the run reported at its end: that is its last process only.
  summary.train_seconds = step_seconds;
  summary.verify_seconds = history.verify_seconds;
  double all = summary.train_seconds + summary.verify_seconds;
  summary.verification_share = all > 0 ? summary.verify_seconds / all : 0;
}

// An event that the state as it was written down does not contain
// (controller/supervisor/decision_state.h).
void replay_alarm(const RunHistory& history, const EventRow& row, const decide::Policy& policy,
                  decide::State& state) {
  if (row.type != "step_reported") {
    decide::decide_in_place(state, decide::event_from_json(row.type, row.body.value_or("")), policy,
                            row.time);
    return;
  }
  const auto step = std::ranges::lower_bound(
      history.steps, std::pair(row.attempt.value_or(0), row.step.value_or(0)), {},
      [](const StepRow& it) { return std::pair(it.attempt, it.step); });
  if (step == history.steps.end()) return;
  decide::decide_in_place(state, decide::step_event(*step, row.body), policy, row.time);
}

std::optional<decide::State> read_state(const RunHistory& history, const decide::Policy& policy) {
  decide::State state;
  if (history.decision_state) state = decide::state_from_json(history.decision_state->json);
  int64_t seq = history.decision_state ? history.decision_state->seq : 0;
  for (const EventRow& row : history.events_since) {
    if (!history.decision_state && row.seq != seq + 1) return std::nullopt;  // some are deleted
    replay_alarm(history, row, policy, state);
    seq = row.seq;
  }
  if (seq == 0) return std::nullopt;
  return state;
}

void read_net_speedup_and_verdict(const RunHistory& history, RunSummary& summary) {
  try {
    const decide::Policy policy = decide::Policy::parse(history.run.policy, "the run's own policy");
    const std::optional<decide::State> state = read_state(history, policy);
    if (!state) return;
    summary.net_speedup = decide::net_speedup_report(*state, policy);
    const decide::VerdictFacts facts = decide::verdict_facts(*state, policy);
    summary.run_verdict =
        history.run.state == "live"
            ? decide::run_verdict(facts, now_seconds())
            : decide::ended_verdict(facts, history.run.state, history.run.finished_at.value_or(0));
  } catch (const std::exception&) {
    return;  // damaged, or written by a version that this one does not know: all else is printed
  }
}

}  // namespace

bool fault_acts_in(const InjectedFault& fault, int64_t first, int64_t last) {
  int64_t end = fault.end_step == 0 ? std::numeric_limits<int64_t>::max() : fault.end_step;
  return fault.start_step <= last && end > first;
}

std::optional<decide::RunVerdict> verdict_on_record(const LedgerView& ledger,
                                                    const std::string& run) {
  RunSummary summary;
  read_net_speedup_and_verdict(load_core_state(ledger, run), summary);
  return summary.run_verdict;
}

RunSummary summarize(const RunHistory& history) {
  RunSummary summary;
  summary.run = history.run.name + "/" + history.run.job_id;
  summary.state = history.run.state;
  summary.faults = {history.faults.begin(), history.faults.end()};
  summary.attempts = static_cast<int64_t>(history.attempts.size());
  summary.final_loss = history.run.final_loss;
  for (const WindowRow& window : history.windows) {
    if (window.state == "quiet" || window.state == "alarm") ++summary.windows;
  }
  if (!history.steps.empty()) summary.steps = history.steps.back().step;
  judge_decisions(history, summary);
  judge_plans(history, summary);
  summary.steps_lost = count_steps_lost(history);
  summary.missing_steps = count_missing_steps(history);
  sum_up_cost(history, summary);
  read_net_speedup_and_verdict(history, summary);
  return summary;
}

std::string summary_to_json(const RunSummary& summary) {
  boost::json::array faults;
  for (const InjectedFault& fault : summary.faults) {
    faults.push_back({{"kind", fault.kind},
                      {"site", fault.site},
                      {"start_step", fault.start_step},
                      {"end_step", fault.end_step},
                      {"description", fault.description}});
  }
  boost::json::object object;
  object["run"] = summary.run;
  object["state"] = summary.state;
  object["fault"] = faults.empty() ? boost::json::value(nullptr) : faults.front();
  object["faults"] = faults;
  object["detected"] = summary.detected;
  object["windows_to_detect"] =
      summary.detected ? boost::json::value(summary.windows_to_detect) : nullptr;
  object["verdict"] = summary.verdict;
  object["verdicts"] = boost::json::value_from(summary.verdicts);
  object["blamed_sites"] = boost::json::value_from(summary.blamed_sites);
  object["action"] = summary.action;
  object["actions"] = boost::json::value_from(summary.actions);
  object["recovered"] = summary.recovered;
  object["plan_changed"] = summary.plan_changed;
  object["rolled_back"] = summary.rolled_back;
  object["returned_to_fp8"] = summary.returned_to_fp8;
  object["steps_lost"] = summary.steps_lost;
  object["missing_steps"] = summary.missing_steps;
  object["alarms"] = summary.alarms;
  object["false_alarms"] = summary.false_alarms;
  object["attempts"] = summary.attempts;
  object["windows"] = summary.windows;
  object["steps"] = summary.steps;
  object["final_loss"] = json_optional(summary.final_loss);
  object["wall_seconds"] = summary.wall_seconds;
  object["train_seconds"] = summary.train_seconds;
  object["verify_seconds"] = summary.verify_seconds;
  object["verification_share"] = summary.verification_share;
  if (summary.run_verdict) {
    object["run_verdict"] = decide::verdict_name(summary.run_verdict->kind);
    object["run_verdict_sentence"] = summary.run_verdict->sentence;
    object["run_verdict_since"] = summary.run_verdict->since;
  }
  object["economics"] = summary.net_speedup
                            ? parse_json_exactly(decide::net_speedup_to_json(*summary.net_speedup))
                            : boost::json::value(nullptr);
  return pretty_json(object);
}

}  // namespace gnomon::cli
