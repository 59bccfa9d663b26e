// What stands around the decision core when a run exists only as numbers: a trainer's position and
// plan, a store of checkpoints, windows and replays that wait, a mailbox of directives. It gets
// every effect and does what a trainer and a supervisor would; what a step or a replay yields is
// given by whoever builds a run upon it (stochastic_run.h, and the scenario tests' SimulatedRun).
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "controller/decide/decide.h"

namespace gnomon::simulate {

std::vector<std::string> site_names(int layers);  // 7 per layer and lm_head

class Stage {
 public:
  explicit Stage(decide::Policy policy);
  virtual ~Stage() = default;
  Stage(Stage&&) = default;

  // Carries out what lies in the mailbox, oldest first.
  void obey();

  decide::State state;
  decide::Policy policy;
  double now = 0;  // seconds since the epoch
  int64_t step = 0;
  int64_t attempt = 0;
  bool paused = false;
  bool stopped = false;
  double damage =
      0;  // per cent of the loss, of the run's weights now; NaN once they are not finite
  int64_t steps_lost = 0;

 protected:
  struct Saved {
    std::string uri;
    int64_t step = 0;
    int64_t attempt = 1;
    double damage = 0;
    int64_t plan_version = 1;
    std::string plan;
  };
  struct Queued {
    decide::OrderReplay order;
    decide::OpenWindow window;
  };

  // Gives the core the event and carries out its effects.
  virtual void feed(const decide::Event& event);
  void apply(const decide::Effect& effect);
  // Something that must not happen, in a sentence: a checkpoint was deleted that is needed.
  virtual void complain(const std::string& what) = 0;
  // The trainer answers a directive; carries it out unless a run has other ideas.
  virtual void answer_directive(const decide::IssueDirective& directive) { carry_out(directive); }

  void carry_out(const decide::IssueDirective& directive);
  // A checkpoint of now; what nobody protects is deleted, the newest excepted.
  void save();
  const Saved* find_saved(const std::string& uri) const;
  const Saved* find_saved(int64_t at) const;  // the newest of that step
  // The newest of the run as it is now: what a trainer that died begins at. There must be one.
  const Saved& newest_saved() const;
  // The next attempt begins at a checkpoint of the store, in the plan that is in force.
  void begin_attempt(const Saved& base, const std::string& cause);
  // Feeds the ticks that are due until then.
  void wait_until(double time);
  // The replay to do next: the highest priority, of these the oldest.
  std::optional<Queued> pop_next_replay();
  void remember_loss(double loss);  // of the step just trained
  // What the trainer had reported; NaN when nothing.
  double reported_loss(int64_t of_attempt, int64_t at) const;
  bool was_reported(int64_t of_attempt, int64_t at) const;

  std::string uri_prefix_;  // of its checkpoints
  std::string plan_;
  int64_t plan_version_ = 1;
  std::string host_ = "trainer-host";
  std::vector<Queued> queue_;
  std::vector<decide::OpenWindow> windows_;  // open ones
  std::vector<std::string> quarantined_;

 private:
  struct Reported {  // of one attempt
    int64_t base = 0;
    std::vector<double> losses;
  };
  const double* find_reported(int64_t of_attempt, int64_t at) const;

  std::vector<Saved> saved_;  // oldest first
  std::vector<std::string> protected_;
  std::deque<decide::IssueDirective> mailbox_;
  std::vector<Reported> reported_;  // by attempt, from the first
  int64_t base_step_ = 0;           // of the attempt
};

}  // namespace gnomon::simulate
