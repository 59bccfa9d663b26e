#include "cli/backtest_course.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/errors.h"

namespace gnomon::cli {
namespace {

constexpr double kTickSlackSeconds = 2;  // the daemon looks for what is due every second
constexpr int kTicksMax = 1000;

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

void BacktestTally::take(const decide::Effect& effect) {
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
      replay_taken_(record.replays.size(), false),
      directives_(record.directives.size()) {
  if (kind_ == Kind::kWatch) policy_.mode = decide::Mode::kObserve;
}

WindowPlace BacktestCourse::place(int64_t window) const {
  const auto found = places_.find(window);
  return found == places_.end() ? WindowPlace{} : found->second;
}

void BacktestCourse::hear(int64_t index) {
  effects_.clear();
  if (parting_) return;
  index_ = index;
  const RecordedEvent& recorded = record_.events[static_cast<size_t>(index)];
  now_ = std::max(now_, recorded.time - shift_);
  const bool skipping = index < skip_until_;
  const bool answer = std::holds_alternative<decide::ReplayFinished>(recorded.event) ||
                      std::holds_alternative<decide::ReplayFailed>(recorded.event);
  if (index == skip_until_ || (skipping && !answer)) return;
  tick_until(now_);
  if (!parting_) std::visit([&](const auto& event) { hear(event); }, recorded.event);
}

// What was due in the record is heard as it was there; what only this course waits for is heard
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

void BacktestCourse::hear(const decide::Tick& tick) {
  if (decide::next_deadline(state_) <= now_) feed(tick);
}

// Whether the record's change to this plan is one that this course has not ordered.
bool BacktestCourse::unordered_plan(int64_t recorded) const {
  if (kind_ == Kind::kWatch || plan_version(recorded) == state_.plan_version) return false;
  std::optional<size_t> newest;
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const RecordedDirective& each = record_.directives[i];
    const bool heard = each.answered_at && *each.answered_at <= index_;
    if (each.plan_version == recorded && heard) newest = i;
  }
  return newest && !directives_[*newest];
}

void BacktestCourse::hear(const decide::StepReported& step) {
  if (jump_ && step.step > jump_->step) return jump_to_rollback();
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

void BacktestCourse::hear(const decide::CheckpointCompleted& checkpoint) {
  decide::CheckpointCompleted here = checkpoint;
  here.plan_version = plan_version(checkpoint.plan_version);
  feed(here);
}

void BacktestCourse::hear(const decide::AttemptStarted& attempt) {
  for (size_t i = 0; i < record_.directives.size(); ++i) {
    const RecordedDirective& recorded = record_.directives[i];
    if (recorded.attempt_at != index_) continue;
    if (!directives_[i] && kind_ == Kind::kFollow) {
      return part(
          fmt::format("the recorded run went back to step {} here, which this policy has "
                      "not ordered by then",
                      attempt.base_step));
    }
    jump_.reset();
  }
  decide::AttemptStarted here = attempt;
  here.plan_version = plan_version(attempt.plan_version);
  feed(here);
}

void BacktestCourse::hear(const decide::ReplayFinished& finished) {
  const auto found = waiting_.find(finished.replay);
  if (found == waiting_.end()) return;
  const decide::OrderReplay order = std::move(found->second);
  waiting_.erase(found);
  feed(as_answer(finished, order));
}

void BacktestCourse::hear(const decide::ReplayFailed& failed) {
  const auto found = waiting_.find(failed.replay);
  if (found == waiting_.end()) return;
  const decide::OrderReplay order = std::move(found->second);
  waiting_.erase(found);
  feed(as_answer(failed, order));
}

void BacktestCourse::hear(const decide::DirectiveChanged& changed) {
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
    tally_.take(effect);
    effects_.push_back(effect);
  }
  for (const decide::Effect& effect : outcome.effects) {
    if (parting_) return;
    if (const auto* order = std::get_if<decide::OrderReplay>(&effect)) take(*order);
    if (const auto* issued = std::get_if<decide::IssueDirective>(&effect)) take(*issued);
  }
  feed_answers();
}

void BacktestCourse::feed_answers() {
  while (!answers_.empty() && !parting_) {
    const decide::Event event = std::move(answers_.front());
    answers_.pop_front();
    feed(event);
    // That the record lacks a window is not that no verifier is there.
    if (std::holds_alternative<decide::ReplayFailed>(event)) state_.watch.unverified_windows = 0;
  }
}

void BacktestCourse::take(const decide::OrderReplay& order) {
  const std::string question = question_of(place(order.window), order.arm, order.plan, order.nudge,
                                           !order.avoid.empty(), order.on_trainer);
  std::optional<size_t> found;
  for (size_t i = 0; i < record_.replays.size(); ++i) {
    const RecordedReplay& recorded = record_.replays[i];
    if (replay_taken_[i] || recorded.question != question) continue;
    if (order.evaluate_endpoints && !recorded.endpoints) continue;
    if (!found || recorded.purpose == order.purpose) found = i;
    if (recorded.purpose == order.purpose) break;
  }
  if (!found) return leave_unanswered(order);
  replay_taken_[*found] = true;
  const RecordedReplay& recorded = record_.replays[*found];
  if (recorded.answered_at > index_) {
    waiting_[recorded.replay] = order;
    return;
  }
  const decide::Event& answer = record_.events[static_cast<size_t>(recorded.answered_at)].event;
  if (const auto* done = std::get_if<decide::ReplayFinished>(&answer))
    answers_.push_back(as_answer(*done, order));
  if (const auto* failed = std::get_if<decide::ReplayFailed>(&answer))
    answers_.push_back(as_answer(*failed, order));
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
  answers_.push_back(decide::ReplayFailed{order.replay, order.window, order.arm,
                                          "the recorded run has no such replay"});
}

void BacktestCourse::take(const decide::IssueDirective& issued) {
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
    if (recorded.issued_at > index_ && recorded.attempt_at) {
      jump_ = Jump{i, state_.newest_step +
                          std::max<int64_t>(0, recorded.applied_step - recorded.issued_step)};
    }
    return;
  }
  if (kind_ == Kind::kFollow) part_by_action(issued);
}

// The rollback that the record has later is carried out now: the attempt that it begins is the same
// whenever it begins.
void BacktestCourse::jump_to_rollback() {
  const RecordedDirective& recorded = record_.directives[jump_->directive];
  const decide::IssueDirective issued = *directives_[jump_->directive];
  jump_.reset();
  const auto attempt_at = static_cast<size_t>(*recorded.attempt_at);
  size_t last_step = attempt_at;
  while (last_step > 0 &&
         !std::holds_alternative<decide::StepReported>(record_.events[last_step].event)) {
    --last_step;
  }
  const double took = record_.events[attempt_at].time - record_.events[last_step].time;
  skip_until_ = *recorded.attempt_at;
  shift_ = record_.events[attempt_at].time - (now_ + took);
  now_ += took;
  decide::AttemptStarted attempt =
      std::get<decide::AttemptStarted>(record_.events[attempt_at].event);
  feed(decide::DirectiveChanged{issued.number, "applied", state_.attempt.number, state_.newest_step,
                                ""});
  if (parting_) return;
  attempt.plan_version = plan_version(attempt.plan_version);
  feed(attempt);
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
