// One policy's course through a recorded run. It gets the run's events, and the answers that
// the record has to its own questions, whatever their numbers. Where it would have done what the
// recorded run did not do, or has not ordered what the recorded run did, the record is no guide any
// more: the course is parted from it.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/decide.h"
#include "controller/decide/net_speedup.h"
#include "lab/backtest/recorded_run.h"

namespace gnomon::cli {

struct BacktestParting {
  int64_t event_seq = 0;
  int64_t step = 0;    // newest step reported by then
  std::string reason;  // a sentence for people
  // The policy goes back here, which the recorded run did not: so many steps are lost.
  std::optional<int64_t> steps_lost;
};

// What a course has come to so far.
struct BacktestTally {
  int64_t windows_measured = 0;    // with a gap
  int64_t windows_skipped = 0;     // the verifiers were behind, or the window was overtaken
  int64_t windows_unmeasured = 0;  // the recorded run has no such window
  int64_t replays_unanswered = 0;  // of every kind, that the record has no answer to
  double seconds_estimated = 0;    // what those would have taken
  std::vector<decide::RecordDecision> decisions;

  void count(const decide::Effect& effect);
};

class BacktestCourse {
 public:
  enum class Kind {
    kFollow,  // decides, and parts from the record where that is no guide
    kWatch,   // goes along with whatever the run did, in mode observe: alarms alone count
  };
  // `record` must stay alive.
  BacktestCourse(const RecordedRun& record, decide::Policy policy, Kind kind);

  // Indices in order, each once. Nothing happens once it has parted. The effects of the last call
  // are in effects().
  void handle(int64_t index);
  const std::vector<decide::Effect>& effects() const { return effects_; }
  const BacktestTally& tally() const { return tally_; }
  const std::optional<BacktestParting>& parting() const { return parting_; }
  const decide::State& state() const { return state_; }
  const decide::Policy& policy() const { return policy_; }
  // Its window, for words and comparisons.
  WindowPlace place(int64_t window) const;
  // Orders that this course gives at another step than the record: they are carried out when the
  // record's are. A sentence each.
  const std::vector<std::string>& shifts() const { return shifts_; }

 private:
  void handle(const decide::StepReported& step);
  void handle(const decide::AttemptStarted& attempt);
  void handle(const decide::CheckpointCompleted& checkpoint);
  void handle(const decide::ReplayFinished& finished);
  void handle(const decide::ReplayFailed& failed);
  void handle(const decide::DirectiveChanged& changed);
  void handle(const decide::Tick& tick);
  template <class Event>
  void handle(const Event& event) {
    feed(event);
  }

  void feed(const decide::Event& event);
  void feed_answers();
  void tick_until(double time);
  void apply(const decide::OrderReplay& order);
  void apply(const decide::IssueDirective& issued);
  void leave_unanswered(const decide::OrderReplay& order);
  void part(std::string reason);
  void part_by_action(const decide::IssueDirective& issued);
  int64_t plan_version(int64_t recorded) const;
  bool unordered_plan(int64_t recorded) const;

  const RecordedRun& record_;
  decide::Policy policy_;
  Kind kind_;
  decide::State state_;
  int64_t index_ = -1;
  double now_ = 0;
  std::vector<decide::Effect> effects_;
  BacktestTally tally_;
  std::optional<BacktestParting> parting_;
  std::vector<std::string> shifts_;
  std::map<int64_t, WindowPlace> places_;
  std::vector<bool> replay_ordered_;                // of record_.replays
  std::map<int64_t, decide::OrderReplay> waiting_;  // by the record's number
  struct Answer {
    decide::Event event;
    bool missing = false;  // the record has none
  };
  std::deque<Answer> answers_;
  bool answering_ = false;
  std::vector<std::optional<decide::IssueDirective>> directives_;  // of record_.directives
};

}  // namespace gnomon::cli
