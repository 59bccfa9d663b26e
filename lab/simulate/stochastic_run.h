// One training run that exists only as numbers, under the real decision core: faults, noise,
// verifiers and crashes are drawn from a seed, what the core orders is done, and the truth is kept
// beside what the core said.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "controller/decide/gap_noise.h"
#include "lab/simulate/faults.h"
#include "lab/simulate/ground_truth.h"
#include "lab/simulate/run_model.h"
#include "lab/simulate/stage.h"
#include "lab/simulate/verifier_pool.h"

namespace gnomon::simulate {

class StochasticRun : public Stage {
 public:
  // The model, and the curve (loss_curve of at least its steps), must outlive the run. The same
  // model, policy and seed give the same run.
  StochasticRun(const RunModel& model, const std::vector<double>& curve, decide::Policy policy,
                uint64_t seed);

  // The whole run; to be called once.
  Tally run();

  // For tests. Sees every event with what the core made of it.
  std::function<void(const decide::Event&, const decide::Outcome&)> watch;
  // The controller is killed and restored after every so many events; 0 = never.
  int64_t restore_every = 0;

 private:
  // What a plan means to the truth.
  struct PlanFacts {
    uint64_t fp8 = 0;           // sites, a bit each
    double fp8_share = 0;       // of the sites
    bool other_recipe = false;  // than the run's own
    double step_seconds = 1;
  };

  void feed(const decide::Event& event) override;
  void complain(const std::string& what) override;
  void answer_directive(const decide::IssueDirective& directive) override;

  void start();
  void train_step();
  double hit_now();  // what befalls the trainer's machine in this step: damage in per cent
  double hit_by(size_t fault);
  void serve();  // what verifiers and the trainer do between two steps
  void serve_inline();
  void serve_pool();
  void finish(VerifierPool::Done done);
  void draw_next_crash();
  void crash();
  void visit();  // a person comes to a run that is held
  void end(const std::string& outcome);

  // replays.cc
  decide::ReplayFinished replay(const decide::OrderReplay& order, const decide::OpenWindow& window,
                                const std::string& verifier, bool on_trainer, bool lies);
  double replay_steps(const decide::OrderReplay& order, const decide::OpenWindow& window,
                      const PlanFacts& facts, double total, decide::ReplayFinished& result);
  void compare_bits(const decide::OrderReplay& order, const decide::OpenWindow& window, bool lies,
                    decide::ReplayFinished& result) const;
  void score(const decide::OpenWindow& window, const PlanFacts& facts,
             decide::ReplayFinished& result) const;
  void evaluate_ends(const decide::OrderReplay& order, const decide::OpenWindow& window,
                     const Saved& start, const PlanFacts& facts, decide::ReplayFinished& result);
  double replay_seconds(const decide::OrderReplay& order, const decide::OpenWindow& window) const;
  const std::string& plan_of_replay(const decide::OrderReplay& order, const Saved& start) const;
  double window_noise(const decide::OpenWindow& window);  // of the run's end, in deviations
  double end_noise(const decide::OrderReplay& order, const decide::OpenWindow& window);
  double offset_percent(int64_t at, const PlanFacts& facts, bool fakequant) const;

  const PlanFacts& facts_of(const std::string& plan) const;
  double held_out(int64_t at) const;
  double clean_loss(int64_t at);  // of a step, with the batch's noise
  double bump(int64_t at, const PlanFacts& facts) const;
  // Per cent that the step adds under these FP8 sites; of kernel bugs nothing when they are faked.
  double wear(int64_t at, uint64_t fp8, bool fakequant) const;
  double hits_again(int64_t at) const;  // a broken trainer's device does the step again
  void feel(int64_t at, const PlanFacts& facts);

  const RunModel& model_;
  const std::vector<double>& curve_;
  uint64_t seed_;
  std::vector<std::string> sites_;
  std::vector<Fault> faults_;
  double heal_;  // factor of a step
  GroundTruth truth_;
  VerifierPool pool_;
  decide::GapNoise shape_;
  double shape_last_ = 0;  // the noise before, for autocorrelation
  Draw own_noise_;
  Draw moments_;               // crashes
  std::vector<double> clean_;  // losses of steps as far as they are known
  struct WindowNoise {
    int64_t attempt, start, steps;
    double value;
  };
  std::vector<WindowNoise> noises_;  // of the newest windows
  struct Hit {
    int64_t attempt, step;
    bool other_batch;
    double damage;
    size_t fault;
  };
  std::vector<Hit> hits_;              // what befell the trainer's machine
  std::vector<bool> mended_;           // by fault: the run has left the host
  std::map<int64_t, int64_t> leases_;  // of replays that somebody has died over
  mutable std::map<std::string, PlanFacts> facts_;
  const PlanFacts* running_ = nullptr;  // of the trainer's plan,
  int64_t running_version_ = 0;         // whose version this is
  int64_t trained_ = 0;
  double crash_at_ = 0;  // steps trained
  double verification_seconds_ = 0;
  double spare_seconds_ = 0;
  int64_t hosts_ = 1;
  int64_t events_ = 0;
};

}  // namespace gnomon::simulate
