#include "controller/supervisor/decision_state.h"

#include <SQLiteCpp/Exception.h>
#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <deque>

#include "base/errors.h"
#include "controller/supervisor/policies_on_record.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// Why a state is of no use.
class Misfit : public Error {
 public:
  using Error::Error;
};
// It and the rows that effects have written have parted: one of the two is wrong.
class NumbersDiffer : public Misfit {
 public:
  using Misfit::Misfit;
};
enum class Numbers { kChecked, kAsTheyAre };

int64_t number_of(Query query) { return query.next() ? query.integer(0) : 0; }

// What the state has handed out must be what the rows say, or the next one collides with a row, or
// names one that is not there.
struct Numbered {
  const char* what;
  const char* newest;
  int64_t decide::State::*next;
  bool skips;  // numbers may be left out: a trainer's were higher
};
constexpr Numbered kNumbered[] = {
    {"window", "SELECT max(window) FROM windows WHERE run = ?", &decide::State::next_window, false},
    {"replay", "SELECT max(replay) FROM replays WHERE run = ?", &decide::State::next_replay, false},
    {"decision", "SELECT max(decision) FROM decisions WHERE run = ?", &decide::State::next_decision,
     false},
    {"directive", "SELECT max(number) FROM directives WHERE run = ?",
     &decide::State::next_directive, true}};

void check_numbers(Connection& connection, int64_t run, const decide::State& state, bool exactly) {
  for (const Numbered& one : kNumbered) {
    const int64_t newest = number_of(connection.query(one.newest, run));
    const int64_t known = state.*one.next - 1;
    if (known < newest || (exactly && !one.skips && known != newest)) {
      throw NumbersDiffer(
          fmt::format("it knows {} {}s, {} are on record", known, one.what, newest));
    }
  }
}

bool on_record(Connection& connection, int64_t run, const decide::Effect& effect) {
  const auto there = [&](const char* sql, int64_t number) {
    Query query = connection.query(sql, run, number);
    return query.next();
  };
  if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
    return there("SELECT 1 FROM windows WHERE run = ? AND window = ?", open->window);
  }
  if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) {
    return there("SELECT 1 FROM replays WHERE run = ? AND replay = ?", order->replay);
  }
  if (const auto* decision = std::get_if<decide::RecordDecision>(&effect)) {
    return there("SELECT 1 FROM decisions WHERE run = ? AND decision = ?", decision->decision);
  }
  if (const auto* issue = std::get_if<decide::IssueDirective>(&effect)) {
    return there("SELECT 1 FROM directives WHERE run = ? AND number = ?", issue->number);
  }
  return false;
}

// Applies events to a state, in the order of their numbers, without any gap.
class Replay {
 public:
  Replay(Connection& connection, int64_t run, const decide::Policy& newest, StateOnRecord from)
      : connection_(connection),
        run_(run),
        policies_(connection, run, newest),
        known_(std::move(from)),
        rows_(ledger::events_after(connection, run, known_.seq)) {}

  PoliciesOnRecord& policies() { return policies_; }
  // Steps of a run that ended long ago are deleted after a while.
  void allow_gaps() { gaps_allowed_ = true; }
  void keep_steps(size_t count) { steps_kept_ = count; }

  void step(const StepRow& event) {
    const int64_t seq = event.seq.value();
    rows_before(seq);
    const decide::State& state = known_.state;
    // Each of these was new when it was recorded.
    if (state.attempt.number == event.attempt && state.newest_step >= event.step) {
      throw Misfit(fmt::format("it knows step {} of attempt {} before event {}, which reports it",
                               event.step, event.attempt, seq));
    }
    replay_step(seq, event, event.reported_at);
  }
  // To be called when there are no more steps.
  void rest() { rows_before(INT64_MAX); }

  const StateOnRecord& known() const { return known_; }
  // How many events were no report of a step: the state is saved with each of those.
  int64_t other_events() const { return other_events_; }
  bool gap() const { return gap_; }
  StateOnRecord result() {
    known_.uncounted.assign(steps_.begin(), steps_.end());
    return std::move(known_);
  }
  // Effects of step reports.
  struct Late {
    std::vector<decide::Effect> effects;
    int64_t seq = 0;
    double time = 0;
  };
  const std::vector<Late>& effects_of_steps() const { return late_; }
  EachEvent each;             // may be empty
  bool keep_effects = false;  // for effects_of_steps()

 private:
  void rows_before(int64_t seq) {
    for (; next_row_ < rows_.size() && rows_[next_row_].seq < seq; ++next_row_) {
      row(rows_[next_row_]);
    }
  }
  void row(const EventRow& row) {
    if (row.type == "step_reported") {
      const std::optional<StepRow> step =
          ledger::find_step(connection_, run_, row.attempt.value_or(0), row.step.value_or(0));
      if (!step) {
        throw Misfit(fmt::format("the report of step {} of attempt {} (event {}) is not there",
                                 row.step.value_or(0), row.attempt.value_or(0), row.seq));
      }
      return replay_step(row.seq, *step, row.time, row.body);
    }
    other_events_ += 1;
    std::optional<decide::Event> event;
    try {
      event = decide::event_from_json(row.type, row.body.value_or(""));
    } catch (const std::exception& error) {
      throw Misfit(
          fmt::format("event {} ({}) cannot be read: {}", row.seq, row.type, error.what()));
    }
    replay_event(row.seq, *event, row.time);
  }
  void replay_step(int64_t seq, const StepRow& step, double time,
                   const std::optional<std::string>& body = {}) {
    std::vector<decide::Effect> effects = replay_event(seq, decide::step_event(step, body), time);
    if (!effects.empty() && keep_effects) late_.push_back({std::move(effects), seq, time});
    if (steps_kept_ == 0) return;
    if (steps_.size() == steps_kept_) steps_.pop_front();
    steps_.push_back(step);
  }
  std::vector<decide::Effect> replay_event(int64_t seq, const decide::Event& event, double time) {
    const std::string type = decide::event_type(event);
    if (seq != known_.seq + 1) {
      gap_ = true;
      if (!gaps_allowed_) {
        throw Misfit(
            fmt::format("event {} ({}) follows event {} on record", seq, type, known_.seq));
      }
    }
    std::vector<decide::Effect> effects;
    try {
      const decide::Policy& policy = policies_.at(seq, time);
      effects = decide::decide_in_place(known_.state, event, policy, time).effects;
    } catch (const std::exception& error) {
      throw Misfit(fmt::format("event {} ({}): {}", seq, type, error.what()));
    }
    known_.seq = seq;
    if (each) each(seq, known_.state, effects);
    return effects;
  }

  Connection& connection_;
  const int64_t run_;
  PoliciesOnRecord policies_;
  StateOnRecord known_;
  std::vector<EventRow> rows_;
  size_t next_row_ = 0;
  int64_t other_events_ = 0;
  bool gaps_allowed_ = false;
  bool gap_ = false;
  size_t steps_kept_ = SIZE_MAX;
  std::deque<StepRow> steps_;
  std::vector<Late> late_;
};

// How many steps on record are missing from the sums.
size_t uncounted_steps(Connection& connection, int64_t run) {
  int64_t left = number_of(connection.query("SELECT count(*) FROM steps WHERE run = ?", run));
  for (const ledger::StepTotalsRow& row : ledger::step_totals(connection, run)) left -= row.steps;
  return static_cast<size_t>(std::max<int64_t>(0, left));
}

void keep_last(std::vector<StepRow>& steps, size_t count) {
  if (steps.size() > count) steps.erase(steps.begin(), steps.end() - static_cast<ptrdiff_t>(count));
}

// The newest event that is still on record; 0 = none.
int64_t newest_event(Connection& connection, int64_t run) {
  const int64_t row = number_of(connection.query("SELECT max(seq) FROM events WHERE run = ?", run));
  const int64_t step = number_of(connection.query(
      "SELECT seq FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1", run));
  return std::max(row, step);
}

bool has_event_rows(Connection& connection, int64_t run) {
  Query query = connection.query("SELECT 1 FROM events WHERE run = ? LIMIT 1", run);
  return query.next();
}

// A state that is written down, with the events after it.
StateOnRecord brought_up_to_date(Connection& connection, const RunRow& run,
                                 const ledger::StateRow& row, const decide::Policy& policy,
                                 const LateEffects& late, Numbers numbers) {
  StateOnRecord saved;
  try {
    saved.state = decide::state_from_json(row.body);
  } catch (const std::exception& error) {
    throw Misfit(fmt::format("it cannot be read: {}", error.what()));
  }
  saved.seq = row.seq;
  const bool live = run.state == "live";
  const int64_t newest = newest_event(connection, run.id);
  // The events of a run that ended long ago are deleted after a while.
  if (newest < row.seq && (live || has_event_rows(connection, run.id))) {
    throw Misfit(fmt::format("it is of event {}, the newest on record is {}", row.seq, newest));
  }
  if (newest <= row.seq) {
    if (numbers == Numbers::kChecked) check_numbers(connection, run.id, saved.state, false);
    return saved;
  }
  Replay replay(connection, run.id, policy, std::move(saved));
  replay.keep_effects = true;
  if (!live) replay.allow_gaps();
  for (const StepRow& step : ledger::steps_after(connection, run.id, row.seq)) {
    replay.step(step);
  }
  replay.rest();
  const bool stale = replay.other_events() > 0;
  if (stale && replay.gap()) throw Misfit("events after it are missing");
  const std::vector<Replay::Late> effects = replay.effects_of_steps();
  StateOnRecord found = replay.result();
  if (numbers == Numbers::kChecked) check_numbers(connection, run.id, found.state, stale);
  if (stale) {
    found.rebuilt_because = fmt::format(
        "it is of event {}, and later ones than reports of steps are on record", row.seq);
    keep_last(found.uncounted, uncounted_steps(connection, run.id));
    return found;
  }
  for (const Replay::Late& one : effects) {
    const bool known = std::ranges::any_of(one.effects, [&](const decide::Effect& effect) {
      return on_record(connection, run.id, effect);
    });
    if (late && !known) late(one.effects, one.seq, one.time);
  }
  return found;
}

// Misfit instead of what a damaged page leads to; what passes by itself goes on as it is.
template <class Read>
auto or_misfit(const Read& read) {
  try {
    return read();
  } catch (const SQLite::Exception& error) {
    if ((error.getErrorCode() & 0xff) != SQLITE_CORRUPT) throw;
    throw Misfit(error.what());
  }
}

StateOnRecord from_first_event(Connection& connection, const RunRow& run,
                               const decide::Policy& policy, UnknownPolicies unknown,
                               const EachEvent& each) {
  Replay replay(connection, run.id, policy, {});
  replay.each = each;
  replay.keep_steps(uncounted_steps(connection, run.id));
  if (unknown == UnknownPolicies::kGuessed) replay.policies().guess();
  ledger::each_step_event(connection, run.id, [&](const StepRow& step) { replay.step(step); });
  replay.rest();
  StateOnRecord found = replay.result();
  if (found.seq == 0) throw Misfit("none of its events is on record");
  try {
    check_numbers(connection, run.id, found.state, true);
  } catch (const Misfit& why) {
    throw Misfit(fmt::format("what this version computes from them does not fit: {}", why.what()));
  }
  return found;
}

RunRow row_of(Connection& connection, int64_t run) {
  std::optional<RunRow> row = ledger::load_run(connection, run);
  if (!row) throw unknown_run(run_name(run));
  return *std::move(row);
}

}  // namespace

RunSetAside::RunSetAside(const std::string& label, std::string reason)
    : HttpError(503, "The run is set aside",
                fmt::format("the decision state of {} cannot be had: {}", label, reason),
                "other runs; this one when gnomond has been stopped and `gnomon ledger repair` has "
                "rebuilt its state, or a backup has been restored, or, where its policy cannot be "
                "read, PUT /v1/runs/{run}/policy has replaced it"),
      reason_(std::move(reason)) {
  retry_after(10);
}

std::optional<StateOnRecord> state_on_record(Connection& connection, int64_t run,
                                             const decide::Policy& policy,
                                             const LateEffects& late) {
  const RunRow row = row_of(connection, run);
  std::string why = "none is written down";
  std::optional<ledger::StateRow> saved;
  bool numbers_differ = false;
  const auto bring_up_to_date = [&](Numbers numbers) {
    return or_misfit(
        [&] { return brought_up_to_date(connection, row, *saved, policy, late, numbers); });
  };
  try {
    saved = or_misfit([&] { return ledger::load_state(connection, run); });
    if (!saved && newest_event(connection, run) == 0) return std::nullopt;
    if (saved) return bring_up_to_date(Numbers::kChecked);
  } catch (const NumbersDiffer& misfit) {
    why = misfit.what();
    numbers_differ = true;
  } catch (const Misfit& misfit) {
    why = misfit.what();
  }
  try {
    StateOnRecord found = or_misfit(
        [&] { return from_first_event(connection, row, policy, UnknownPolicies::kRefused, {}); });
    found.rebuilt_because = why;
    return found;
  } catch (const Misfit& misfit) {
    // Then it is rather the rows that are wrong.
    if (numbers_differ) return bring_up_to_date(Numbers::kAsTheyAre);
    throw RunSetAside(row.label(), fmt::format("the one written down is of no use ({}), and it "
                                               "cannot be rebuilt from the events ({})",
                                               why, misfit.what()));
  }
}

StateOnRecord rebuilt_state(Connection& connection, int64_t run, const decide::Policy& policy,
                            UnknownPolicies unknown, const EachEvent& each) {
  const RunRow row = row_of(connection, run);
  try {
    return or_misfit([&] { return from_first_event(connection, row, policy, unknown, each); });
  } catch (const Misfit& misfit) {
    throw RunSetAside(row.label(),
                      fmt::format("it cannot be rebuilt from the events ({})", misfit.what()));
  }
}

}  // namespace gnomon
