#include "lab/backtest/backtest.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <variant>

#include "base/errors.h"
#include "controller/decide/decide.h"
#include "controller/decide/window_lengths.h"

namespace gnomon::cli {
namespace {

constexpr int64_t kNearWindows = 4;  // so far apart two alarms may be about the same trouble

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

std::vector<BacktestDecision> decisions_in(const std::vector<decide::Effect>& effects,
                                           const RecordedEvent& event) {
  std::vector<BacktestDecision> list;
  for (const decide::Effect& effect : effects) {
    const auto* made = std::get_if<decide::RecordDecision>(&effect);
    if (made == nullptr) continue;
    list.push_back({event.seq, event.time, made->kind, made->verdict, made->action, made->enforced,
                    made->step, made->sites, made->sentence});
  }
  return list;
}

// The run's own policy, given exactly the daemon's events.
class AsRecorded {
 public:
  explicit AsRecorded(decide::Policy policy) : policy_(std::move(policy)) {}

  const std::vector<decide::Effect>& handle(const RecordedEvent& event) {
    decide::Outcome outcome = decide::decide(std::move(state_), event.event, policy_, event.time);
    state_ = std::move(outcome.state);
    effects_ = std::move(outcome.effects);
    for (const decide::Effect& effect : effects_) {
      tally_.count(effect);
      if (const auto* open = std::get_if<decide::OpenWindow>(&effect))
        places_[open->window] = {open->attempt, open->start_step, open->steps};
    }
    return effects_;
  }
  const decide::State& state() const { return state_; }
  const decide::Policy& policy() const { return policy_; }
  const BacktestTally& tally() const { return tally_; }
  WindowPlace place(int64_t window) const {
    const auto found = places_.find(window);
    return found == places_.end() ? WindowPlace{} : found->second;
  }

 private:
  decide::Policy policy_;
  decide::State state_;
  std::vector<decide::Effect> effects_;
  BacktestTally tally_;
  std::map<int64_t, WindowPlace> places_;
};

// What verifiers and trainer would get to see of the effects, in words without numbers.
template <class Side>
std::vector<std::string> orders(const Side& side, const std::vector<decide::Effect>& effects) {
  std::vector<std::string> list;
  for (const decide::Effect& effect : effects) {
    if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
      list.push_back(fmt::format("opens a {} window over steps {}–{}", open->kind, open->start_step,
                                 open->start_step + open->steps));
    } else if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) {
      const WindowPlace place = side.place(order->window);
      list.push_back(fmt::format("orders a replay ({}, for {}) of steps {}–{}", order->arm,
                                 order->purpose, place.start_step, place.start_step + place.steps));
    } else if (const auto* issued = std::get_if<decide::IssueDirective>(&effect)) {
      list.push_back(issued->kind == "rollback"
                         ? fmt::format("orders a rollback to step {}", issued->to_step)
                         : fmt::format("orders {}", issued->kind));
    }
  }
  return list;
}

std::vector<std::string> only_in(std::vector<std::string> list,
                                 const std::vector<std::string>& other) {
  for (const std::string& each : other) {
    const auto found = std::find(list.begin(), list.end(), each);
    if (found != list.end()) list.erase(found);
  }
  return list;
}

std::vector<std::string> with_decisions(std::vector<std::string> list,
                                        const std::vector<BacktestDecision>& decisions) {
  for (const BacktestDecision& decision : decisions) {
    list.push_back(fmt::format("{}: {}", decision.kind, decision.sentence));
  }
  return list;
}

template <class Decision>
void count(const Decision& decision, BacktestSide& side) {
  if (decision.kind == "alarm") side.alarms += 1;
  if (decision.kind == "verdict" && decision.verdict != "none")
    side.verdicts[decision.verdict] += 1;
  if (decision.action == "none") return;
  side.actions.push_back(fmt::format("{} at step {}{}", decision.action, decision.step,
                                     decision.enforced ? "" : " (not enforced)"));
}

// The net speed-up if FP8's steps alone were so many times as fast as BF16's. It is proportional to
// that.
std::optional<double> net_at(const decide::Statement& made, double speedup) {
  if (made.useful_steps == 0) return std::nullopt;
  return made.net / made.speedup.value * speedup;
}

void fill_side(const decide::State& state, const decide::Policy& policy, const BacktestTally& tally,
               BacktestSide& side) {
  side.windows_measured = tally.windows_measured;
  side.windows_skipped = tally.windows_skipped;
  side.windows_unmeasured = tally.windows_unmeasured;
  side.replays_unanswered = tally.replays_unanswered;
  side.seconds_estimated = tally.seconds_estimated;
  const decide::Account account = decide::account_now(state, policy);
  side.replays = account.verifications;
  side.verification_seconds =
      account.trainer_verification_seconds + account.spare_verification_seconds;
  side.steps_lost = decide::steps_lost(account);
}

decide::Statement statement_of(const decide::State& state, const decide::Policy& policy) {
  return decide::statement(decide::account_now(state, policy), policy.economics.speedup,
                           policy.economics.loss_exponent);
}

// By the economics, at this policy's cadence, for a run like `state`.
std::optional<double> expected_net(decide::State state, const decide::Policy& policy) {
  state.watch.every = 0;
  const decide::CadenceReport cadence = decide::net_speedup_report(state, policy).cadence;
  if (policy.window.every == 0 && cadence.best_net) return cadence.best_net;
  try {
    return decide::net_speedup(decide::run_model(state, policy), static_cast<double>(cadence.every),
                               decide::hazard_mean(state.money.hazard));
  } catch (const ConfigError&) {
    return std::nullopt;  // spare devices that are too few for this cadence
  }
}

// The rollback that an action's decision announced: the record's next one. Null: none was made.
const RecordedDirective* rollback_of(const RecordedRun& record, const DecisionRow& action) {
  for (const RecordedDirective& directive : record.directives) {
    if (directive.kind != "rollback" || !directive.attempt_at) continue;
    const RecordedEvent& event = record.events[static_cast<size_t>(directive.issued_at)];
    if (event.seq >= action.event_seq) return &directive;
  }
  return nullptr;
}

// The record's alarm nearest to this step, not further than `within` steps, that led to a rollback
// before the next alarm.
std::optional<BacktestEstimate> estimate_at(const RecordedRun& record,
                                            const std::vector<DecisionRow>& decisions, int64_t step,
                                            int64_t within) {
  std::optional<BacktestEstimate> best;
  const DecisionRow* alarm = nullptr;
  for (const DecisionRow& decision : decisions) {
    if (decision.kind == "alarm") alarm = &decision;
    if (alarm == nullptr || decision.kind != "action" || !decision.enforced) continue;
    const int64_t apart = std::abs(alarm->step - step);
    if (apart > within || (best && std::abs(best->alarm_step - step) <= apart)) continue;
    const RecordedDirective* rollback = rollback_of(record, decision);
    if (rollback == nullptr) continue;
    const auto& attempt = std::get<decide::AttemptStarted>(
        record.events[static_cast<size_t>(*rollback->attempt_at)].event);
    const int64_t lost =
        rollback->applied_step - attempt.base_step + std::max<int64_t>(0, step - alarm->step);
    best = BacktestEstimate{alarm->step,
                            decision.action,
                            decision.verdict,
                            std::max<int64_t>(0, rollback->applied_step - alarm->step),
                            std::max<int64_t>(0, lost),
                            std::nullopt};
  }
  return best;
}

// The statement of a run that trains on and then goes back as in the estimate.
decide::Statement after_rollback(decide::State state, const decide::Policy& policy,
                                 const BacktestEstimate& estimate) {
  decide::Account& account = state.money.account;
  account.fp8.add(account.fp8.mean(), estimate.steps_to_rollback);
  const int64_t kept = account.fp8.steps - account.fp8_lost;
  decide::add_rollback(account, {std::min(estimate.steps_lost, kept), 0, 0});
  decide::add_switch(account, policy.economics.restart_steps * account.fp8.typical());
  return statement_of(state, policy);
}

int64_t alarms_behind(const RecordedRun& record, const decide::Policy& policy, int64_t index) {
  BacktestCourse watch(record, policy, BacktestCourse::Kind::kWatch);
  int64_t alarms = 0;
  for (size_t i = 0; i < record.events.size(); ++i) {
    watch.handle(static_cast<int64_t>(i));
    if (static_cast<int64_t>(i) <= index) continue;
    for (const decide::Effect& effect : watch.effects()) {
      const auto* decision = std::get_if<decide::RecordDecision>(&effect);
      if (decision != nullptr && decision->kind == "alarm") alarms += 1;
    }
  }
  return alarms;
}

void note_first(const RecordedEvent& event, int64_t step, const std::vector<std::string>& own,
                const std::vector<std::string>& other, BacktestResult& result) {
  if (result.first || own == other) return;
  result.first = BacktestFirst{event.seq, step, only_in(own, other), only_in(other, own)};
}

// Where the comparison ends: both sides as they stand.
void close(const RecordedRun& record, const std::vector<DecisionRow>& decisions,
           const AsRecorded& own, const BacktestCourse& other, BacktestResult& result) {
  result.parting = other.parting();
  result.step = result.parting ? result.parting->step : own.state().newest_step;
  fill_side(own.state(), own.policy(), own.tally(), result.recorded_side);
  fill_side(other.state(), other.policy(), other.tally(), result.replayed_side);
  for (const decide::RecordDecision& decision : other.tally().decisions)
    count(decision, result.replayed_side);
  if (result.parting && other.state().investigation)
    result.estimate =
        estimate_at(record, decisions, result.step,
                    kNearWindows * decide::window_lengths(own.state(), own.policy()).every);
}

}  // namespace

BacktestResult backtest(const LedgerView& ledger, const RunRow& run, const decide::Policy& policy,
                        const std::string& ledger_file) {
  const RecordedRun record = recorded_run(ledger, run.id, ledger_file);
  const std::vector<DecisionRow> decisions = ledger.decisions(run.id);
  auto recorded = recorded_by_event(decisions);
  AsRecorded own(decide::Policy::parse(run.policy, "the run's own policy"));
  BacktestCourse other(record, policy, BacktestCourse::Kind::kFollow);

  BacktestResult result;
  decide::Statement own_then;  // where the comparison ends
  for (size_t i = 0; i < record.events.size(); ++i) {
    const RecordedEvent& event = record.events[i];
    const std::vector<decide::Effect>& effects = own.handle(event);
    const std::vector<BacktestDecision>& known = recorded[event.seq];
    if (!result.not_as_recorded_seq && !same_conclusion(known, decisions_in(effects, event)))
      result.not_as_recorded_seq = event.seq;
    if (other.parting()) continue;
    other.handle(static_cast<int64_t>(i));
    const std::vector<BacktestDecision> made = decisions_in(other.effects(), event);
    result.events += 1;
    result.recorded += static_cast<int64_t>(known.size());
    result.replayed += static_cast<int64_t>(made.size());
    for (const BacktestDecision& decision : known) count(decision, result.recorded_side);
    const bool alike = same_conclusion(known, made);
    if (!alike) result.differences.push_back({known, made});
    const std::vector<BacktestDecision> none;
    note_first(event, other.state().newest_step,
               with_decisions(orders(own, effects), alike ? none : known),
               with_decisions(orders(other, other.effects()), alike ? none : made), result);
    if (!other.parting() && i + 1 < record.events.size()) continue;
    close(record, decisions, own, other, result);
    own_then = statement_of(own.state(), own.policy());
    if (result.parting)
      result.alarms_after = alarms_behind(record, policy, static_cast<int64_t>(i));
  }
  result.shifts = other.shifts();
  const decide::MeasuredSpeedup speedup = statement_of(own.state(), own.policy()).speedup;
  result.speedup = speedup.value;
  result.speedup_measured = decide::is_measured(speedup);
  result.recorded_side.net_speedup = net_at(own_then, result.speedup);
  result.replayed_side.net_speedup = net_at(statement_of(other.state(), policy), result.speedup);
  if (result.estimate) {
    result.estimate->net_speedup =
        net_at(after_rollback(other.state(), policy, *result.estimate), result.speedup);
  }
  result.expected_recorded = expected_net(own.state(), own.policy());
  result.expected_replayed = expected_net(own.state(), policy);
  return result;
}

}  // namespace gnomon::cli
