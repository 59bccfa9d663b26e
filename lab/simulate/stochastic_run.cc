#include "lab/simulate/stochastic_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "base/philox.h"
#include "controller/decide/net_speedup.h"
#include "controller/decide/plans.h"
#include "controller/decide/window_lengths.h"
#include "protocol/precision_plan.h"

namespace gnomon::simulate {
namespace {

constexpr uint64_t kShapeStream = 10, kOwnStream = 11, kCrashStream = 12, kLossStream = 13;
constexpr int64_t kTokensPerStep = 4096;
// A run that goes back again and again ends when it has trained so many times its steps.
constexpr int64_t kTimesSteps = 5;
constexpr size_t kProblemsKept = 8;

std::string base_plan_toml() {
  PrecisionPlan plan = PrecisionPlan::fp8();
  plan.version = 1;
  return plan.to_toml();
}

}  // namespace

StochasticRun::StochasticRun(const RunModel& model, const std::vector<double>& curve,
                             decide::Policy chosen, uint64_t seed)
    : Stage(std::move(chosen)),
      model_(model),
      curve_(curve),
      seed_(seed),
      sites_(site_names(model.layers)),
      faults_(draw_faults(model, seed)),
      heal_(model.heal_steps > 0 ? std::exp(-1 / model.heal_steps) : 1),
      truth_(faults_, sites_, decide::asked_lengths(policy, 0).every, model.verifiers == 0),
      pool_(model, policy.verifier.lease_ttl_seconds, seed),
      shape_(decide::noise_shape(model.noise), philox(seed, kShapeStream, 0)[0]),
      own_noise_(seed, kOwnStream),
      moments_(seed, kCrashStream),
      mended_(faults_.size(), false) {
  GNOMON_ASSERT(static_cast<int64_t>(curve.size()) > model.steps);
  plan_ = base_plan_toml();
  shape_last_ = shape_.next();
  draw_next_crash();
}

void StochasticRun::draw_next_crash() {
  crash_at_ = model_.crashes > 0
                  ? static_cast<double>(trained_) + moments_.exponential() / model_.crashes
                  : std::numeric_limits<double>::infinity();
}

const StochasticRun::PlanFacts& StochasticRun::facts_of(const std::string& toml) const {
  const auto known = facts_.find(toml);
  if (known != facts_.end()) return known->second;
  const PrecisionPlan plan = PrecisionPlan::parse(toml);
  PlanFacts facts;
  for (size_t i = 0; i < sites_.size(); ++i) {
    if (plan.resolve(sites_[i], model_.layers).any_fp8()) facts.fp8 |= uint64_t{1} << i;
  }
  facts.fp8_share =
      static_cast<double>(std::popcount(facts.fp8)) / static_cast<double>(sites_.size());
  facts.step_seconds = 1 + (model_.speedup - 1) * (1 - facts.fp8_share);
  for (const PlanRule& rule : plan.rules) {
    facts.other_recipe = facts.other_recipe || rule.recipe == policy.ladder.recipe;
  }
  return facts_[toml] = facts;
}

// A uniform sum of four: near enough to a Gaussian for the spike rule, and never over 3.5
// deviations.
double StochasticRun::clean_loss(int64_t at) {
  while (static_cast<int64_t>(clean_.size()) <= at) {
    const auto next = static_cast<int64_t>(clean_.size());
    const auto words = philox(seed_, kLossStream, static_cast<uint64_t>(next));
    double sum = -2;
    for (const uint32_t word : words) sum += static_cast<double>(word) * 0x1p-32;
    clean_.push_back(held_out(next) * (1 + model_.loss_noise * std::sqrt(3.0) * sum));
  }
  return clean_[static_cast<size_t>(at)];
}

double StochasticRun::bump(int64_t at, const PlanFacts& facts) const {
  double nats = 0;
  for (const Fault& fault : faults_) {
    if (fault.from > at) break;
    if (!fault.acts(at)) continue;
    if (fault.kind == FaultKind::kSpike) nats += fault.size;
    if (fault.kind == FaultKind::kOverflow && (fault.sites & facts.fp8) != 0) nats += fault.size;
  }
  return nats;
}

double StochasticRun::wear(int64_t at, uint64_t fp8, bool fakequant) const {
  double percent = 0;
  for (const Fault& fault : faults_) {
    if (fault.from > at) break;
    const bool bug = fault.kind == FaultKind::kKernelBug && !fakequant;
    if (fault.kind != FaultKind::kNumerics && !bug) continue;
    const uint64_t guilty = fault.sites & fp8;
    if (guilty == 0 || !fault.acts(at)) continue;
    percent += fault.size * std::popcount(guilty) / std::popcount(fault.sites);
  }
  return percent;
}

double StochasticRun::hit_by(size_t index) {
  const Fault& fault = faults_[index];
  const double percent = fault.size;
  hits_.push_back({attempt, step, fault.kind == FaultKind::kSkippedBatch, percent, index});
  truth_.record_fault(index, attempt, step, trained_, percent);
  return percent;
}

double StochasticRun::hit_now() {
  double percent = 0;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (fault.from > trained_) break;
    if (comes_again(fault.kind) || mended_[i] || !fault.acts(trained_)) continue;
    if (fault.kind == FaultKind::kHardware) {
      const auto words = philox(seed_, 200 + i, static_cast<uint64_t>(trained_));
      if (philox_uniform(words[0]) >= kHardwareChance) continue;
    }
    percent += hit_by(i);
  }
  return percent;
}

void StochasticRun::feel(int64_t at, const PlanFacts& facts) {
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (fault.from > at) break;
    if (!comes_again(fault.kind) || !fault.acts(at)) continue;
    const uint64_t guilty = fault.sites & facts.fp8;
    if (fault.kind == FaultKind::kSpike) {
      truth_.record_fault(i, attempt, at, trained_, 0);
    } else if (fault.kind == FaultKind::kScaleDrift) {
      if (facts.fp8 != 0 && !facts.other_recipe) truth_.record_fault(i, attempt, at, trained_, 0);
    } else if (guilty != 0) {
      const double share = static_cast<double>(std::popcount(guilty)) / std::popcount(fault.sites);
      const bool jump = fault.kind == FaultKind::kOverflow;
      const double harm = !jump ? fault.size * share : std::isfinite(fault.size) ? 0 : fault.size;
      truth_.record_fault(i, attempt, at, trained_, harm);
    }
  }
}

void StochasticRun::feed(const decide::Event& event) {
  events_ += 1;
  if (restore_every > 0 && events_ % restore_every == 0) {
    state = decide::state_from_json(decide::state_to_json(state));
  }
  if (watch) {
    decide::Outcome outcome = decide::decide(std::move(state), event, policy, now);
    watch(event, outcome);
    state = std::move(outcome.state);
    for (const decide::Effect& effect : outcome.effects) {
      truth_.record_effect(effect, trained_);
      apply(effect);
    }
    return;
  }
  const decide::Consequences follows = decide::decide_in_place(state, event, policy, now);
  for (const decide::Effect& effect : follows.effects) {
    truth_.record_effect(effect, trained_);
    apply(effect);
  }
}

void StochasticRun::complain(const std::string& what) {
  if (truth_.tally.problems.size() < kProblemsKept) {
    truth_.tally.problems.push_back(fmt::format("seed {}, step {}: {}", seed_, step, what));
  }
}

void StochasticRun::answer_directive(const decide::IssueDirective& directive) {
  if (directive.kind == "rollback") now += model_.restart_seconds;
  carry_out(directive);
}

void StochasticRun::start() {
  feed(decide::RunRegisteredEvent{"simulated", plan_, sites_, model_.layers,
                                  model_.checkpoint_every, model_.steps, 0, 0,
                                  model_.verifiers == 0, kTokensPerStep});
  attempt = 1;
  feed(decide::AttemptStarted{1, 0, "start", 1, host_});
  save();
}

void StochasticRun::train_step() {
  step += 1;
  trained_ += 1;
  if (running_version_ != plan_version_) {
    running_ = &facts_of(plan_);
    running_version_ = plan_version_;
  }
  const PlanFacts& facts = *running_;
  double loss = clean_loss(step) * (1 + damage / 100);
  damage *= heal_;
  if (!faults_.empty()) {
    loss += bump(step, facts);
    if (!std::isfinite(loss)) damage = std::numeric_limits<double>::quiet_NaN();
    feel(step, facts);
    damage += wear(step, facts.fp8, false) + hit_now();
  }
  remember_loss(loss);
  now += facts.step_seconds;
  Tally& tally = truth_.tally;
  if (facts.fp8 == 0) tally.bf16_steps += 1;
  if (facts.fp8 != 0 && facts.fp8_share < 1) tally.pinned_steps += 1;
  feed(decide::StepReported{attempt, step, plan_version_, loss, std::isfinite(loss) ? 1.0 : loss,
                            facts.step_seconds});
  if (step % model_.checkpoint_every == 0) save();
}

void StochasticRun::serve_inline() {
  while (auto queued = pop_next_replay()) {
    const double seconds = replay_seconds(queued->order, queued->window);
    now += seconds;
    verification_seconds_ += seconds;
    truth_.tally.replays += 1;
    decide::ReplayFinished result =
        replay(queued->order, queued->window, host_ + ":0", true, false);
    result.seconds = seconds;
    feed(result);
  }
}

void StochasticRun::finish(VerifierPool::Done done) {
  GroundTruth& truth = truth_;
  VerifierPool::Task& task = done.task;
  const bool open = std::ranges::any_of(
      windows_, [&](const auto& window) { return window.window == task.window.window; });
  if (done.died) {
    truth.tally.verifier_deaths += 1;
    if (!open) return;
    if (task.leases >= policy.verifier.attempts_max) {
      leases_.erase(task.order.replay);
      return feed(decide::ReplayFailed{task.order.replay, task.order.window, task.order.arm,
                                       fmt::format("{} leases ran out", task.leases)});
    }
    leases_[task.order.replay] = task.leases;
    queue_.push_back({task.order, task.window});
    return;
  }
  leases_.erase(task.order.replay);
  spare_seconds_ += done.seconds;
  truth.tally.replays += 1;
  if (!open) return;  // the lease was taken back
  if (done.lies && task.order.purpose == "shadow") truth.record_lie(task.window.window);
  decide::ReplayFinished result = replay(task.order, task.window, done.verifier, false, done.lies);
  result.seconds = done.seconds;
  feed(result);
}

void StochasticRun::serve_pool() {
  while (auto done = pool_.pop_done(now)) finish(std::move(*done));
  while (!queue_.empty()) {
    // The most urgent one that somebody who is free may do.
    std::optional<Queued> next;
    std::vector<Queued> put_back;
    while (!next) {
      auto queued = pop_next_replay();
      if (!queued) break;
      if (pool_.may_start(queued->order, quarantined_, now)) {
        next = std::move(queued);
      } else {
        put_back.push_back(std::move(*queued));
      }
    }
    for (Queued& queued : put_back) queue_.push_back(std::move(queued));
    if (!next) return;
    const double seconds = replay_seconds(next->order, next->window);
    const auto before = leases_.find(next->order.replay);
    const int64_t leases = before != leases_.end() ? before->second : 0;
    pool_.start({std::move(next->order), std::move(next->window), leases}, quarantined_, now,
                seconds);
  }
}

void StochasticRun::serve() {
  do {
    model_.verifiers == 0 ? serve_inline() : serve_pool();
    obey();
    if (now >= decide::next_deadline(state)) feed(decide::Tick{});
  } while (model_.verifiers == 0 && !queue_.empty());
}

void StochasticRun::crash() {
  const Saved base = newest_saved();
  truth_.tally.crashes += 1;
  truth_.tally.lost += step - base.step;
  now += model_.restart_seconds;
  begin_attempt(base, "restart");
  draw_next_crash();
}

void StochasticRun::visit() {
  truth_.tally.holds += 1;
  wait_until(now + model_.person_seconds);
  decide::OperatorOverride asked;
  asked.kind = "resume";
  asked.owner = "somebody";
  asked.reason = "looked at it";
  feed(asked);
  obey();
  if (paused) return complain("a run that was told to go on stands still");
  // Elsewhere, from where it was sound for certain.
  hosts_ += 1;
  host_ = fmt::format("trainer-host-{}", hosts_);
  for (size_t i = 0; i < faults_.size(); ++i) {
    if (faults_[i].kind == FaultKind::kHardware && faults_[i].from <= trained_) mended_[i] = true;
  }
  const Saved* sound = state.last_verified ? find_saved(state.last_verified->uri) : nullptr;
  if (sound == nullptr) return complain("the last verified checkpoint was deleted");
  const Saved base = *sound;
  steps_lost += step - base.step;
  now += model_.restart_seconds;
  begin_attempt(base, "restart");
}

void StochasticRun::end(const std::string& outcome) {
  Tally& tally = truth_.tally;
  tally.seconds = now;
  tally.outcome = outcome;
  feed(decide::RunEnded{outcome == "completed" ? RunOutcome("completed") : "stopped", step});
  // What is under way is finished, and nothing new follows.
  for (int64_t i = 0; i < 10'000 && !(queue_.empty() && pool_.idle()); ++i) {
    if (model_.verifiers > 0) now = std::max(now, pool_.next_change(now));
    serve();
  }
  if (!queue_.empty() || !pool_.idle()) complain("replays are ordered for ever after the end");
}

Tally StochasticRun::run() {
  Tally& tally = truth_.tally;
  start();
  serve();
  while (step < model_.steps && !stopped && trained_ < kTimesSteps * model_.steps) {
    if (paused && tally.holds >= model_.holds_max) break;
    if (paused) {
      visit();
      serve();
      if (paused) continue;
    }
    train_step();
    serve();
    if (static_cast<double>(trained_) >= crash_at_ && step < model_.steps) {
      crash();
      serve();
    }
  }
  const bool endless = trained_ >= kTimesSteps * model_.steps && step < model_.steps;
  end(step >= model_.steps ? "completed" : endless ? "endless" : paused ? "held" : "stopped");
  tally.trained = trained_;
  tally.lost += steps_lost;
  tally.kept = step;
  tally.verification_seconds = verification_seconds_;
  tally.spare_seconds = spare_seconds_;
  tally.damage_percent = damage;
  const double share = model_.verifiers > 0 ? policy.economics.spare_fraction : 0;
  tally.net_speedup = model_.speedup * static_cast<double>(step) / (tally.seconds * (1 + share));
  const decide::Statement core = decide::statement(
      decide::account_now(state, policy), policy.economics.speedup, policy.economics.loss_exponent);
  tally.net_speedup_by_core = core.net;
  tally.hazard_by_core = decide::hazard_mean(state.money.hazard);
  truth_.finish();
  return std::move(tally);
}

}  // namespace gnomon::simulate
