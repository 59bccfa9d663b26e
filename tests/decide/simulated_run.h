// A training run that exists only as numbers: a trainer, verifiers and a checkpoint store that
// answer the decision core from a model of the truth. Damage is a share of the loss that adds up
// step by step wherever a guilty site runs in FP8; a replay starts from its checkpoint's damage and
// adds what its own plan would have added.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/decide/decide.h"
#include "lab/simulate/stage.h"
#include "protocol/run_precision.h"
#include "tests/decide/invariants.h"

namespace gnomon::decide {

struct Truth {
  int layers = 4;
  RunPrecision run_wide;  // of the base plan; what it has in low precision counts as an FP8 site
  int64_t checkpoint_every = 10;
  int64_t total_steps = 1000;
  // Damage in per cent of the loss that one step adds while all FP8 sites of its plan are as given.
  std::function<double(int64_t step, const std::set<std::string>& fp8_sites)> damage;
  // Added to a step's loss, in nats, under any plan with these FP8 sites; NaN and infinity are
  // allowed.
  std::function<double(int64_t step, const std::set<std::string>& fp8_sites)> bump;
  // The same under any plan, where the weights have taken damage (per cent) before.
  std::function<double(int64_t step, double damage)> bump_of_damaged;
  // Steps at which FP8 spikes by 3 nats, unless its weights were nudged: rounding decides it.
  std::vector<int64_t> chance_spikes;
  std::vector<int64_t>
      bit_flips;  // after these steps, once each, the run's weights take 20% damage
  std::function<bool(int64_t step)> silent_flip;  // other bits from here on, and no damage
  bool sums_state = false;  // the step after a flip says that it has found another state
  bool inexact = false;     // no two computations give the same bits
  bool equal_fingerprints = true;
  bool in_kernel = false;    // the damage comes from the FP8 kernels: `fakequant` has none of it
  bool in_compiler = false;  // or from compiled code: `eager` has none of it
  std::vector<std::string> verifiers = {"v1:1", "v2:2"};  // they answer in turn
  std::string bad_verifier;    // its replays under FP8 plans give other bits, and damaged weights
  std::string sound_verifier;  // the FP8 damage is not in its kernels; they give other bits,
  int64_t sound_from = 0;      // once the run is at this step
  bool trainer_replays = false;
  bool trainer_confirms = false;
  Capabilities capabilities;
  bool in_memory = false;  // no verifier can read the checkpoints
  bool stuck = false;      // bit flips come again when the trainer itself replays their steps
  std::vector<int64_t> other_batches;  // in these steps the run took other tokens
  double other_batch_damage = 5;       // per cent, of each
  bool other_batches_again = false;    // and does so in every attempt: the loader stands still
  bool bf16_differs = false;           // BF16 replays give other bits each time
  double perturbed_percent = 0.001;    // between BF16 and BF16 with another order of sums
  double offset_percent = 0.12;
  std::optional<double> pinned_offset_percent;  // while some sites are in BF16
  std::function<double(int64_t step)> drift;    // added to the offset, per cent
  std::function<double(int64_t step)> level;    // factor of every loss, in any precision
  std::function<void(StepReported&)> casts;     // adds what the step's casts did
  int64_t replays_per_step_percent = 50;  // verifiers' speed: replays finished per training step
  double noise_percent = 0.05;            // of each replayed window
  // FP8 adds so many per cent to the end of a window that begins here, in every replay: what its
  // own weights and batches do, not rounding.
  std::function<double(int64_t start_step)> of_window;
  double bf16_step_seconds = 1;        // an FP8 step takes one second
  double replay_overhead_seconds = 0;  // of each replay, beside its steps
};

using simulate::site_names;

class SimulatedRun : public simulate::Stage {
 public:
  SimulatedRun(Truth truth, Policy policy);

  // Writes the state and each event as JSON and reads them back before every decision.
  bool through_json = false;
  // Sees each event before it is fed and may drop it (false).
  std::function<bool(const Event&)> filter;
  // Alters what a verifier answers: one that lies.
  std::function<void(ReplayFinished&)> lie;
  // The trainer refuses directives of these kinds.
  std::set<std::string> refuses;
  std::set<int64_t> refuses_bases;  // nor can it go back to these steps
  // The trainer does as if directives of these kinds did not exist; it answers later when told to.
  std::set<std::string> ignores;
  std::vector<IssueDirective> ignored;
  // The clock goes on by one with each event and by `wait`.
  void wait(double seconds) { wait_until(now + seconds); }
  void ask(const std::string& kind, double seconds = 0, const std::string& mode_or_plan = "");
  void obey_late();  // it carries out what it has ignored

  void start();
  void train_one_step() { train_step(); }  // while the verifiers rest
  void advance();                          // one step, and what verifiers do meanwhile
  void train_until(int64_t step);          // stops early when paused
  std::string plan() const { return plan_; }
  void train_until_phase(const std::string& phase, int64_t step_max);
  void restart_from(int64_t step);  // a crash: the next attempt begins at that checkpoint
  void flip_next() { flips_left_.insert(step + 3); }  // a bit flips three steps from now
  void perturb(double percent) { truth_.perturbed_percent = percent; }
  void break_bf16() { truth_.bf16_differs = true; }
  void make_sound() { truth_.bf16_differs = false; }
  void drain();  // answers all replays that are waiting
  void end(const std::string& outcome = "completed");
  void feed(const Event& event) override;

  // What came of it.
  std::vector<RecordDecision> decisions(const std::string& kind) const;
  std::vector<IssueDirective> directives(const std::string& kind) const;
  int64_t orders(const std::string& purpose) const;
  int64_t closed(const std::string& outcome) const;

  std::vector<std::string> log;  // every effect as JSON, in order
  std::vector<Effect> effects;
  std::vector<Event> events;
  std::vector<double> times;  // of the events

 private:
  void complain(const std::string& what) override;
  void answer_directive(const IssueDirective& directive) override;
  void train_step();
  bool answer_next();
  ReplayFinished replay(const Queued& queued);
  void replay_steps(const Queued& queued, const std::set<std::string>& sites, double& total,
                    ReplayFinished& result);
  void score(const Queued& queued, const std::set<std::string>& sites, ReplayFinished& result);
  std::string next_verifier(const OrderReplay& order);
  std::set<std::string> fp8(const std::string& plan) const;
  double step_loss(int64_t at, double damage_before, const std::set<std::string>& sites,
                   bool nudged = false) const;
  double held_out(int64_t at, double total_damage) const;

  Truth truth_;
  std::vector<std::string> sites_;
  std::set<std::pair<int64_t, int64_t>> flipped_;  // attempt, step
  std::set<int64_t> flips_left_;
  std::map<std::string, std::set<std::string>> fp8_cache_;
  int64_t verifier_credit_ = 0;
  size_t turn_ = 0;
  int64_t other_bits_ = 0;
  Invariants invariants_;
};

}  // namespace gnomon::decide
