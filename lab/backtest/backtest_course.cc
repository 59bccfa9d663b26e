#include "lab/backtest/backtest_course.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/errors.h"

namespace gnomon::cli {
namespace {

constexpr double kTickSlackSeconds = 2;  // the daemon looks for what is due every second
constexpr int kTicksMax = 1000;
constexpr int64_t kWindowsMax = 1'000'000'000;

// Replays whose absence leaves the course as it was: nobody has measured, that is all.
bool can_be_missing(const decide::OrderReplay& order) {
  return order.purpose == "shadow" || order.purpose == "instrument" || order.purpose == "probe" ||
         order.arm == "scores";
}

template <class Answer>
decide::Event as_answer(Answer answer, const decide::OrderReplay& order) {
  answer.replay = order.replay;
  answer.window = order.window;
  if constexpr (std::is_same_v<Answer, decide::ReplayFinished>) answer.purpose = order.purpose;
  return answer;
}

}  // namespace

void BacktestTally::count(const decide::Effect& effect) {
  if (const auto* decision = std::get_if<decide::RecordDecision>(&effect)) {
    decisions.push_back(*decision);
  } else if (const auto* close = std::get_if<decide::CloseWindow>(&effect)) {
    if (close->d_percent) windows_measured += 1;
    if (!close->d_percent && close->outcome == "skipped") windows_skipped += 1;
  }
}

BacktestCourse::BacktestCourse(const RecordedRun& record, decide::Policy policy, Kind kind)
    : record_(record),
      policy_(std::move(policy)),
      kind_(kind),
      replay_ordered_(record.replays.size(), false),
      directives_(record.directives.size()) {
  if (kind_ == Kind::kWatch) policy_.mode = decide::Mode::kObserve;
}

WindowPlace BacktestCourse::place(int64_t window) const {
  const auto found = places_.find(window);
  return found == places_.end() ? WindowPlace{} : found->second;
}

void BacktestCourse::handle(int64_t index) {
  effects_.clear();
  if (parting_) return;
  index_ = index;
  const RecordedEvent& recorded = record_.events[static_cast<size_t>(index)];
  now_ = std::max(now_, recorded.time);
  tick_until(now_);
  if (!parting_) std::visit([&](const auto& event) { handle(event); }, recorded.event);
}

// What was due in the record comes as it was there; what only this course waits for comes
// when it is due.
void BacktestCourse::tick_until(double time) {
  for (int i = 0; i < kTicksMax && !parting_; ++i) {
    const double due = decide::next_deadline(state_);
    if (!(due < time - kTickSlackSeconds)) return;
    now_ = due;
    feed(decide::Tick{});
    now_ = time;
  }
}

void BacktestCourse::handle(const decide::Tick& tick) {
  if (decide::next_deadline(state_) <= now_) feed(tick);
}

// True when the record's change to this plan is one that this course has not ordered.
bool BacktestCourse::unordered_plan(int64_t recorded) const {
  if (kind_ == Kind::kWatch || plan_version(recorded) == state_.plan_version) return false;
  std::optional<size_t> newest;
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const RecordedDirective& each = record_.directives[i];
    const bool answered = each.answered_at && *each.answered_at <= index_;
    if (each.plan_version == recorded && answered) newest = i;
  }
  return newest && !directives_[*newest];
}

void BacktestCourse::handle(const decide::StepReported& step) {
  if (unordered_plan(step.plan_version)) {
    return part(
        fmt::format("the recorded run took plan {} after step {}, which this policy has "
                    "not ordered by then",
                    step.plan_version, step.step - 1));
  }
  decide::StepReported here = step;
  here.plan_version = plan_version(step.plan_version);
  feed(here);
}

void BacktestCourse::handle(const decide::CheckpointCompleted& checkpoint) {
  decide::CheckpointCompleted here = checkpoint;
  here.plan_version = plan_version(checkpoint.plan_version);
  feed(here);
}

void BacktestCourse::handle(const decide::AttemptStarted& attempt) {
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const RecordedDirective& recorded = record_.directives[i];
    if (recorded.attempt_at != index_) continue;
    if (!directives_[i] && kind_ == Kind::kFollow) {
      return part(
          fmt::format("the recorded run went back to step {} here, which this policy has "
                      "not ordered by then",
                      attempt.base_step));
    }
  }
  decide::AttemptStarted here = attempt;
  here.plan_version = plan_version(attempt.plan_version);
  feed(here);
}

void BacktestCourse::handle(const decide::ReplayFinished& finished) {
  const auto found = waiting_.find(finished.replay);
  if (found == waiting_.end()) return;
  const decide::OrderReplay order = std::move(found->second);
  waiting_.erase(found);
  feed(as_answer(finished, order));
}

void BacktestCourse::handle(const decide::ReplayFailed& failed) {
  const auto found = waiting_.find(failed.replay);
  if (found == waiting_.end()) return;
  const decide::OrderReplay order = std::move(found->second);
  waiting_.erase(found);
  feed(as_answer(failed, order));
}

void BacktestCourse::handle(const decide::DirectiveChanged& changed) {
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const RecordedDirective& recorded = record_.directives[i];
    if (recorded.number != changed.number) continue;
    if (directives_[i]) {
      decide::DirectiveChanged here = changed;
      here.number = directives_[i]->number;
      return feed(here);
    }
    const bool stands = recorded.kind == "pause" || recorded.kind == "stop";
    if (stands && changed.state == "applied" && kind_ == Kind::kFollow) {
      return part(
          fmt::format("the recorded run was told to {} at step {}, which this policy has "
                      "not ordered by then",
                      recorded.kind, changed.step));
    }
  }
}

// This course's number of a plan that the record knows by another.
int64_t BacktestCourse::plan_version(int64_t recorded) const {
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const bool of_it = recorded > 0 && record_.directives[i].plan_version == recorded;
    if (of_it && directives_[i]) return directives_[i]->plan_version;
  }
  return recorded;
}

void BacktestCourse::feed(const decide::Event& event) {
  decide::Outcome outcome = decide::decide(std::move(state_), event, policy_, now_);
  state_ = std::move(outcome.state);
  for (const decide::Effect& effect : outcome.effects) {
    if (const auto* open = std::get_if<decide::OpenWindow>(&effect)) {
      places_[open->window] = {open->attempt, open->start_step, open->steps};
    }
    tally_.count(effect);
    effects_.push_back(effect);
  }
  for (const decide::Effect& effect : outcome.effects) {
    if (parting_) return;
    if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) apply(*order);
    if (const auto* issued = std::get_if<decide::IssueDirective>(&effect)) apply(*issued);
  }
  if (!answering_) feed_answers();
}

// What an answer leads to may ask again: that is answered here too, not within the answer.
void BacktestCourse::feed_answers() {
  answering_ = true;
  while (!answers_.empty() && !parting_) {
    const Answer answer = std::move(answers_.front());
    answers_.pop_front();
    // That the record lacks a window is not that no verifier is there.
    const int64_t unverified = state_.watch.unverified_windows;
    if (answer.missing) state_.watch.unverified_windows = -kWindowsMax;
    feed(answer.event);
    if (answer.missing) state_.watch.unverified_windows = unverified;
  }
  answering_ = false;
}

void BacktestCourse::apply(const decide::OrderReplay& order) {
  const std::string question = question_of(place(order.window), order.arm, order.plan, order.nudge,
                                           !order.avoid.empty(), order.on_trainer);
  // An answer under the same purpose is best; a question that the record has and whose answer it
  // never got is waited for in vain, as it was there.
  const auto worth = [&](const RecordedReplay& recorded) {
    return (recorded.answered_at ? 2 : 0) + (recorded.purpose == order.purpose ? 1 : 0);
  };
  std::optional<size_t> found;
  for (size_t i = 0; i < record_.replays.size(); ++i) {
    const RecordedReplay& recorded = record_.replays[i];
    if (replay_ordered_[i] || recorded.question != question) continue;
    if (order.evaluate_endpoints && !recorded.endpoints) continue;
    if (!found || worth(recorded) > worth(record_.replays[*found])) found = i;
  }
  if (!found) return leave_unanswered(order);
  replay_ordered_[*found] = true;
  const RecordedReplay& recorded = record_.replays[*found];
  if (!recorded.answered_at || *recorded.answered_at > index_) {
    waiting_[recorded.replay] = order;
    return;
  }
  const decide::Event& answer = record_.events[static_cast<size_t>(*recorded.answered_at)].event;
  if (const auto* done = std::get_if<decide::ReplayFinished>(&answer))
    answers_.push_back({as_answer(*done, order), false});
  if (const auto* failed = std::get_if<decide::ReplayFailed>(&answer))
    answers_.push_back({as_answer(*failed, order), false});
}

void BacktestCourse::leave_unanswered(const decide::OrderReplay& order) {
  const WindowPlace window = place(order.window);
  if (kind_ == Kind::kFollow && !can_be_missing(order)) {
    return part(
        fmt::format("this policy looks into steps {}–{} with a replay ({}, for {}) that "
                    "was never made",
                    window.start_step, window.start_step + window.steps, order.arm, order.purpose));
  }
  const double seconds = record_.seconds_per_replayed_step * static_cast<double>(window.steps);
  const double spare = policy_.economics.spare_fraction;
  decide::add_verification(state_.money.account,
                           spare > 0 ? decide::Where::kSpare : decide::Where::kTrainer, seconds,
                           spare > 0 ? spare : 1);
  tally_.replays_unanswered += 1;
  tally_.seconds_estimated += seconds;
  if (order.purpose == "shadow") tally_.windows_unmeasured += 1;
  answers_.push_back({decide::ReplayFailed{order.replay, order.window, order.arm,
                                           "the recorded run has no such replay"},
                      true});
}

void BacktestCourse::apply(const decide::IssueDirective& issued) {
  const std::string order = order_of(issued.kind, issued.to_step, issued.plan);
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const RecordedDirective& recorded = record_.directives[i];
    const bool over = recorded.answered_at && *recorded.answered_at < index_;
    if (directives_[i] || over || recorded.order != order) continue;
    directives_[i] = issued;
    const int64_t earlier = recorded.issued_step - state_.newest_step;
    if (recorded.issued_at > index_ && earlier != 0) {
      shifts_.push_back(fmt::format("{} is ordered at step {}, in the record at step {}",
                                    issued.kind, state_.newest_step, recorded.issued_step));
    }
    return;
  }
  if (kind_ == Kind::kFollow) part_by_action(issued);
}

void BacktestCourse::part(std::string reason) {
  parting_ = BacktestParting{record_.events[static_cast<size_t>(index_)].seq, state_.newest_step,
                             std::move(reason), std::nullopt};
}

// What the action costs at once is known: the steps it throws away, and the policy's restart.
void BacktestCourse::part_by_action(const decide::IssueDirective& issued) {
  const bool back = issued.kind == "rollback";
  part(fmt::format("this policy orders {}{} here, which the recorded run did not do", issued.kind,
                   back ? fmt::format(" to step {}", issued.to_step) : ""));
  if (!back) return;
  parting_->steps_lost = state_.newest_step - issued.to_step;
  const decide::AttemptStarted attempt{state_.attempt.number + 1, issued.to_step, "rollback",
                                       issued.plan_version, state_.attempt.host};
  state_ = decide::decide(std::move(state_), attempt, policy_, now_).state;
  decide::add_switch(state_.money.account,
                     policy_.economics.restart_steps * state_.money.account.fp8.typical());
}

}  // namespace gnomon::cli
