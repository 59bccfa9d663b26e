// Runs with a known truth, told once and used by the scenario tests and by the tests that tell them
// again with the state going through JSON.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/philox.h"
#include "protocol/precision_plan.h"
#include "tests/decide/simulated_run.h"

namespace gnomon::decide {

inline const std::string kGuilty = "model.layers.2.mlp.down_proj";

inline Policy scenario_policy() {
  Policy policy;
  policy.window.every = 20;
  policy.window.steps = 20;
  return policy;
}

// While a step lies in [from, to), each of `guilty` in FP8 adds `percent` of damage.
inline Truth numerical_fault(std::vector<std::string> guilty, int64_t from, int64_t to,
                             double percent = 0.2) {
  Truth truth;
  truth.damage = [guilty, from, to, percent](int64_t step, const std::set<std::string>& fp8) {
    double damage = 0;
    for (const std::string& site : guilty) {
      if (fp8.contains(site) && step >= from && step < to) damage += percent;
    }
    return damage;
  };
  return truth;
}

// A bump of `nats` at one step, under every plan or only where `only_fp8` runs in FP8.
inline Truth spike(int64_t at, double nats, const std::string& only_fp8 = "") {
  Truth truth;
  truth.bump = [at, nats, only_fp8](int64_t step, const std::set<std::string>& fp8) {
    return step == at && (only_fp8.empty() || fp8.contains(only_fp8)) ? nats : 0.0;
  };
  return truth;
}

// Windows of FP8 lie `mean` above BF16, give or take `spread`, and rounding adds -0.15% to 0.35%.
inline Truth wide_windows(int64_t steps, double mean, double spread, uint64_t seed = 7) {
  Truth truth;
  truth.total_steps = steps;
  truth.noise_percent = 0.5;
  truth.of_window = [=](int64_t start) {
    const double u = philox_uniform(philox(seed, 1, static_cast<uint64_t>(start))[0]);
    return mean + spread * (2 * u - 1);
  };
  return truth;
}

// True when a decision of this kind has these words.
inline bool said_in(const SimulatedRun& run, const std::string& kind, const std::string& words) {
  return std::ranges::any_of(run.decisions(kind), [&](const RecordDecision& decision) {
    return decision.sentence.find(words) != std::string::npos;
  });
}

struct Scenario {
  std::string name;
  Truth truth;
  Policy policy;
  std::function<void(SimulatedRun&)> play;
};
inline void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

inline Policy with(std::function<void(Policy&)> change) {
  Policy policy = scenario_policy();
  change(policy);
  return policy;
}

inline std::vector<Scenario> all_scenarios();

// The scenario's run at its end.
inline SimulatedRun run_scenario(const std::string& name) {
  for (const Scenario& scenario : all_scenarios()) {
    if (scenario.name != name) continue;
    SimulatedRun run(scenario.truth, scenario.policy);
    scenario.play(run);
    return run;
  }
  throw std::logic_error("no scenario " + name);
}

inline std::vector<Scenario> all_scenarios() {
  const auto whole = [](SimulatedRun& run) {
    run.start();
    run.train_until(1000);
    run.end();
    run.drain();
  };
  const auto crash = [](SimulatedRun& run) {
    run.start();
    run.train_until_phase("attribution", 400);
    run.restart_from(run.step / 10 * 10);
    run.train_until(1000);
    run.end();
    run.drain();
  };
  const auto refusing = [whole](SimulatedRun& run) {
    run.refuses = {"rollback"};
    whole(run);
  };
  Truth flip;
  flip.bit_flips = {333};
  Truth flips_again = flip;
  flips_again.equal_fingerprints = false;
  const auto overridden = [](SimulatedRun& run) {
    run.start();
    run.train_until(150);
    run.ask("silence", 300);
    run.train_until(290);
    run.ask("set_plan", 200, PrecisionPlan::bf16().to_toml());
    run.train_until(380);
    run.ask("pause");
    run.obey();
    run.ask("checkpoint_now");
    run.ask("resume");
    run.obey();
    run.ask("mode", 100, "advise");
    run.train_until(1000);
    run.ask("stop");
    run.end("stopped");
    run.drain();
  };
  // What FP8 does to the weights shows 15 steps later, in a step that BF16 cannot save any more.
  Truth late = numerical_fault({kGuilty}, 311, 325, 0.02);
  late.bump_of_damaged = [](int64_t step, double damage) {
    return step == 339 && damage > 0.15 ? 3.0 : 0.0;
  };
  Truth kernel = numerical_fault({kGuilty}, 201, 460);
  kernel.in_kernel = true;
  Truth bad_verifier = numerical_fault({kGuilty}, 201, 460);
  bad_verifier.bad_verifier = "v2:2";
  Truth stuck = flip;
  stuck.stuck = stuck.trainer_replays = true;
  Truth other_batch;
  other_batch.other_batches = {333};
  Truth harmless_batches;
  harmless_batches.other_batches = {333, 353, 413};
  harmless_batches.other_batch_damage = 0.02;
  Truth wild;
  wild.noise_percent = 2;
  Truth drift;
  drift.total_steps = 2000;
  drift.drift = [](int64_t step) { return step >= 700 ? 0.6 : 0.0; };
  Truth stale = drift;
  stale.in_kernel = true;
  const auto longer = [](SimulatedRun& run) {
    run.start();
    run.train_until(2000);
    run.end();
    run.drain();
  };
  const auto deaf = [whole](SimulatedRun& run) {
    run.ignores = {"rollback", "pause"};
    whole(run);
  };
  // Moments and communication in FP8, of which one is spoilt.
  const auto low = [](std::vector<std::string> guilty) {
    Truth truth = numerical_fault(std::move(guilty), 201, 460);
    truth.run_wide = {"fp8", "fp8", "e5m2", "e4m3"};
    return truth;
  };
  std::vector<Scenario> scenarios = {
      {"Healthy", Truth(), scenario_policy(), whole},
      {"FaultPinReturn", numerical_fault({kGuilty}, 201, 460), scenario_policy(), whole},
      {"SecondMoments", low({"optimizer.second_moment"}), scenario_policy(), whole},
      {"GradientsOnTheWire", low({"communication.gradients"}), scenario_policy(), whole},
      {"SiteBesideFp8Moments", low({kGuilty}), scenario_policy(), whole},
      {"TwoSites", numerical_fault({kGuilty, "lm_head"}, 201, 1000), scenario_policy(), whole},
      {"BitFlip", flip, scenario_policy(), whole},
      {"BitFlipOtherMachine", flips_again, scenario_policy(), whole},
      {"GenericSpike", spike(333, 3.0), scenario_policy(), whole},
      {"Fp8Spike", spike(333, 3.0, kGuilty), scenario_policy(), whole},
      {"SpoiltWeights", late, scenario_policy(), whole},
      {"NanInFp8", spike(333, NAN, kGuilty), scenario_policy(), whole},
      {"NanInBoth", spike(333, NAN), scenario_policy(), whole},
      {"Observe", numerical_fault({kGuilty}, 201, 1000),
       with([](Policy& p) { p.mode = Mode::kObserve; }), whole},
      {"Here", numerical_fault({kGuilty}, 201, 1000),
       with([](Policy& p) { p.ladder.from = "here"; }), whole},
      {"SlowBias", numerical_fault({kGuilty}, 601, 2000, 0.02), with([](Policy& p) {
         p.ladder.from = "evidence";
         p.detector.accept_percent = 0;
       }),
       whole},
      {"StraightToBf16", numerical_fault({kGuilty}, 201, 460),
       with([](Policy& p) { p.ladder.rungs = {"bf16"}; }), whole},
      {"TooManySites", numerical_fault(site_names(4), 201, 460, 0.02), scenario_policy(), whole},
      {"Crash", numerical_fault({kGuilty}, 201, 1000), scenario_policy(), crash},
      {"RefusedRollback", numerical_fault({kGuilty}, 201, 1000), scenario_policy(), refusing},
      {"Overrides", numerical_fault({kGuilty}, 201, 1000), scenario_policy(), overridden},
      {"DeafTrainer", numerical_fault({kGuilty}, 201, 1000),
       with([](Policy& p) { p.directives.timeout_seconds = 60; }), deaf},
      {"KernelBug", kernel, scenario_policy(), whole},
      {"BadVerifier", bad_verifier, scenario_policy(), whole},
      {"StuckBit", stuck, scenario_policy(), whole},
      {"OtherBatch", other_batch, scenario_policy(), whole},
      {"HarmlessBatches", harmless_batches, scenario_policy(), whole},
      {"WildNoise", wild, scenario_policy(), whole},
      {"Drift", drift, with([](Policy& p) {
         p.ladder.rungs = {"pin", "recipe", "bf16", "hold"};
         p.ladder.recipe = "mx";
       }),
       longer},
      {"StaleCopies", stale, scenario_policy(), longer},
      {"DriftNoRecipe", drift, scenario_policy(), longer},
      {"Jump", numerical_fault({kGuilty}, 401, 1000, 0.035), scenario_policy(), whole},
      {"LongForks", numerical_fault({kGuilty}, 1, 1000, 0.004), with([](Policy& p) {
         p.window.long_steps = 100;
         p.window.long_every = 100;
       }),
       whole},
      {"NoActionsLeft", numerical_fault({kGuilty}, 201, 1000),
       with([](Policy& p) { p.limits.actions_max = 0; }), whole},
  };
  return scenarios;
}

}  // namespace gnomon::decide
