#include "lab/backtest/recorded_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <variant>

#include "base/errors.h"
#include "controller/decide/decide.h"
#include "protocol/precision_plan.h"

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
    return decide::step_event(step->second, row.body);
  }
  try {
    return decide::event_from_json(row.type, row.body.value_or(""));
  } catch (const Error& error) {
    throw FormatError(ledger_file, 0, fmt::format("event {}: {}", row.seq, error.what()),
                      "an event of this version");
  }
}

std::string without_version(const std::string& toml) {
  if (toml.empty()) return toml;
  PrecisionPlan plan = PrecisionPlan::parse(toml);
  plan.version = 0;
  return plan.to_toml();
}

int64_t replay_of(const decide::Event& event) {
  if (const auto* done = std::get_if<decide::ReplayFinished>(&event)) return done->replay;
  if (const auto* failed = std::get_if<decide::ReplayFailed>(&event)) return failed->replay;
  return 0;
}

void read_replays(const LedgerView& ledger, int64_t run, RecordedRun& record) {
  std::map<int64_t, int64_t> answers;
  double seconds = 0;
  double steps = 0;
  for (size_t i = 0; i < record.events.size(); ++i) {
    const decide::Event& event = record.events[i].event;
    if (const int64_t replay = replay_of(event); replay > 0) {
      answers[replay] = static_cast<int64_t>(i);
    }
    if (const auto* done = std::get_if<decide::ReplayFinished>(&event)) {
      seconds += done->seconds;
      steps += static_cast<double>(done->steps.size());
    }
  }
  if (steps > 0) record.seconds_per_replayed_step = seconds / steps;
  std::map<int64_t, WindowPlace> places;
  for (const WindowRow& window : ledger.windows(run)) {
    places[window.window] = {window.attempt, window.start_step, window.steps};
  }
  for (const ReplayRow& row : ledger.replays(run)) {
    const auto answer = answers.find(row.replay);
    const auto answered_at =
        answer == answers.end() ? std::nullopt : std::optional<int64_t>(answer->second);
    record.replays.push_back({row.replay,
                              question_of(places[row.window], row.arm, row.plan, row.nudge,
                                          !row.avoid.empty(), row.on_trainer),
                              row.purpose, row.evaluate_endpoints, answered_at});
  }
}

// The attempt that a rollback's application began.
std::optional<int64_t> attempt_after(const RecordedRun& record, int64_t applied, int64_t to_step) {
  for (size_t i = static_cast<size_t>(applied); i < record.events.size(); ++i) {
    const auto* attempt = std::get_if<decide::AttemptStarted>(&record.events[i].event);
    if (attempt == nullptr) continue;
    const bool of_it = attempt->cause == "rollback" && attempt->base_step == to_step;
    return of_it ? std::optional<int64_t>(static_cast<int64_t>(i)) : std::nullopt;
  }
  return std::nullopt;
}

void read_directives(const LedgerView& ledger, int64_t run, RecordedRun& record) {
  for (const DirectiveRow& row : ledger.directives(run)) {
    RecordedDirective directive;
    directive.number = row.number;
    directive.kind = row.kind;
    directive.order = order_of(row.kind, row.to_step, row.plan);
    directive.plan_version = row.plan_version;
    int64_t newest_step = 0;
    for (size_t i = 0; i < record.events.size(); ++i) {
      const RecordedEvent& event = record.events[i];
      const auto* step = std::get_if<decide::StepReported>(&event.event);
      if (step != nullptr) newest_step = step->step;
      if (event.time <= row.issued_at) {
        directive.issued_at = static_cast<int64_t>(i);
        directive.issued_step = newest_step;
      }
      const auto* changed = std::get_if<decide::DirectiveChanged>(&event.event);
      if (changed == nullptr || changed->number != row.number) continue;
      directive.answered_at = static_cast<int64_t>(i);
      directive.applied_step = newest_step;
      if (changed->state == "applied" && row.kind == "rollback")
        directive.attempt_at = attempt_after(record, static_cast<int64_t>(i), row.to_step);
    }
    record.directives.push_back(std::move(directive));
  }
}

}  // namespace

std::string question_of(const WindowPlace& window, const std::string& arm, const std::string& plan,
                        int64_t nudge, bool elsewhere, bool on_trainer) {
  return fmt::format("{} {} {} {} {} {} {}\n{}", window.attempt, window.start_step, window.steps,
                     arm, nudge, elsewhere, on_trainer, without_version(plan));
}

std::string order_of(const std::string& kind, int64_t to_step, const std::string& plan) {
  return fmt::format("{} {}\n{}", kind, kind == "rollback" ? to_step : 0, without_version(plan));
}

RecordedRun recorded_run(const LedgerView& ledger, int64_t run, const std::string& ledger_file) {
  RecordedRun record;
  std::map<StepKey, StepRow> steps;
  for (const StepRow& step : ledger.steps(run)) steps[{step.attempt, step.step}] = step;
  for (const EventRow& row : ledger.events(run)) {
    const int64_t next = std::ssize(record.events) + 1;
    if (row.seq != next) {
      throw FormatError(
          ledger_file, 0,
          fmt::format("run-{} has no event {} (the next one is {})", run, next, row.seq),
          "a run whose events are all there: [retention] deletes those of runs that "
          "ended long ago (events_days, steps_days)");
    }
    record.events.push_back({row.seq, row.time, read_event(row, steps, ledger_file)});
  }
  read_replays(ledger, run, record);
  read_directives(ledger, run, record);
  return record;
}

}  // namespace gnomon::cli
