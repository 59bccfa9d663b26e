#include "tests/decide/simulated_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/philox.h"
#include "protocol/precision_plan.h"
#include "tests/support/words.h"

namespace gnomon::decide {

SimulatedRun::SimulatedRun(Truth truth, Policy chosen)
    : Stage(std::move(chosen)), truth_(std::move(truth)), sites_(site_names(truth_.layers)) {
  PrecisionPlan plan = PrecisionPlan::fp8().with_run(truth_.run_wide);
  plan.version = 1;
  plan_ = plan.to_toml();
  if (truth_.in_memory) uri_prefix_ = "memory:";
  flips_left_ = std::set<int64_t>(truth_.bit_flips.begin(), truth_.bit_flips.end());
}

void SimulatedRun::feed(const Event& event) {
  if (filter && !filter(event)) return;
  events.push_back(event);
  now += 1;
  times.push_back(now);
  const Event received =
      through_json ? event_from_json(event_type(event), event_to_json(event)) : event;
  State before = through_json ? state_from_json(state_to_json(state)) : state;
  Outcome outcome = decide(std::move(before), received, policy, now);
  invariants_.check(event, outcome, policy);
  state = std::move(outcome.state);
  for (const Effect& effect : outcome.effects) {
    log.push_back(effect_type(effect) + " " + effect_to_json(effect));
    effects.push_back(effect);
    apply(effect);
  }
}

void SimulatedRun::complain(const std::string& what) { ADD_FAILURE() << what; }

void SimulatedRun::start() {
  feed(RunRegisteredEvent{"simulated", plan_, sites_, truth_.layers, truth_.checkpoint_every,
                          truth_.total_steps, 0, 0, truth_.trainer_replays, 4096,
                          truth_.trainer_confirms, truth_.capabilities});
  attempt = 1;
  feed(AttemptStarted{1, 0, "start", 1, "trainer-host"});
  save();
}

std::set<std::string> SimulatedRun::fp8(const std::string& toml) const {
  auto& cache = const_cast<SimulatedRun*>(this)->fp8_cache_;
  const auto known = cache.find(toml);
  if (known != cache.end()) return known->second;
  const PrecisionPlan plan = PrecisionPlan::parse(toml);
  std::set<std::string> result;
  for (const RunChoice& choice : run_choices()) {
    if (choice.is_low(plan.of_run())) result.insert(choice.site);
  }
  for (const std::string& site : sites_) {
    if (plan.resolve(site, truth_.layers).any_fp8()) result.insert(site);
  }
  return cache[toml] = result;
}

double SimulatedRun::step_loss(int64_t at, double damage_before, const std::set<std::string>& sites,
                               bool nudged) const {
  const double noise = philox_uniform(philox(7, 1, static_cast<uint64_t>(at))[0]) - 0.5;
  double loss = held_out(at, damage_before) * (1 + 0.01 * noise);
  if (truth_.bump) loss += truth_.bump(at, sites);
  const bool by_chance =
      !nudged && !sites.empty() && std::ranges::count(truth_.chance_spikes, at) > 0;
  if (by_chance) loss += 3;
  if (truth_.bump_of_damaged) loss += truth_.bump_of_damaged(at, damage_before);
  return loss;
}

double SimulatedRun::held_out(int64_t at, double total_damage) const {
  const double level = truth_.level ? truth_.level(at) : 1;
  return level * (2.0 + 3.0 * std::exp(-static_cast<double>(at) / 400.0)) *
         (1 + total_damage / 100);
}

void SimulatedRun::train_step() {
  const bool state_changed = truth_.sums_state && flipped_.contains({attempt, step});
  step += 1;
  const std::set<std::string> sites = fp8(plan_);
  const double loss = step_loss(step, damage, sites);
  if (truth_.damage) damage += truth_.damage(step, sites);
  if (!std::isfinite(loss)) damage = std::numeric_limits<double>::quiet_NaN();
  if (flips_left_.erase(step) > 0) {
    damage += 20;
    flipped_.insert({attempt, step});
  }
  if (truth_.silent_flip && truth_.silent_flip(step)) flipped_.insert({attempt, step});
  const auto& others = truth_.other_batches;
  const bool other = std::find(others.begin(), others.end(), step) != others.end();
  if (other && (attempt == 1 || truth_.other_batches_again)) {
    damage += truth_.other_batch_damage;
    flipped_.insert({attempt, step});
  }
  remember_loss(loss);
  const double seconds = sites.empty() ? truth_.bf16_step_seconds : 1;
  StepReported report{attempt, step, plan_version_, loss, std::isfinite(loss) ? 1.0 : loss,
                      seconds};
  if (state_changed) report.state_changed = true;
  if (truth_.casts) truth_.casts(report);
  feed(report);
  if (step % truth_.checkpoint_every == 0) save();
}

void SimulatedRun::answer_directive(const IssueDirective& directive) {
  if (ignores.contains(directive.kind)) {
    ignored.push_back(directive);
  } else if (refuses.contains(directive.kind) || refuses_bases.contains(directive.to_step)) {
    feed(DirectiveChanged{directive.number, "rejected", attempt, step,
                          "the simulated trainer refuses"});
  } else {
    carry_out(directive);
  }
}

void SimulatedRun::obey_late() {
  const std::vector<IssueDirective> late = std::move(ignored);
  ignored.clear();
  for (const IssueDirective& directive : late) carry_out(directive);
}

void SimulatedRun::ask(const std::string& kind, double seconds, const std::string& what) {
  OperatorOverride asked;
  asked.kind = test::any_word(kind);
  asked.owner = "anna";
  asked.reason = "because";
  if (kind == "set_plan") asked.plan = what;
  if (kind == "mode") asked.mode = test::any_word(what);
  if (seconds > 0) asked.expires_at = now + seconds;
  EXPECT_EQ(why_not(state, asked), "");
  feed(asked);
}

std::string SimulatedRun::next_verifier(const OrderReplay& order) {
  if (order.on_trainer) return "trainer-host:0";
  for (size_t tried = 0; tried < truth_.verifiers.size(); ++tried) {
    const std::string& name = truth_.verifiers[turn_++ % truth_.verifiers.size()];
    const bool trusted =
        std::find(quarantined_.begin(), quarantined_.end(), name) == quarantined_.end();
    if (!avoids(order.avoid, name) && trusted) return name;
  }
  return truth_.verifiers.front();
}

void SimulatedRun::replay_steps(const Queued& queued, const std::set<std::string>& sites,
                                double& total, ReplayFinished& result) {
  const OpenWindow& window = queued.window;
  const bool sound =
      result.verifier == truth_.sound_verifier && step >= truth_.sound_from && !sites.empty();
  const bool damaged = !sound && !(queued.order.arm == "fakequant" && truth_.in_kernel) &&
                       !(queued.order.arm == "eager" && truth_.in_compiler);
  const bool bad = result.verifier == truth_.bad_verifier && !sites.empty();
  bool differs = bad || sound || queued.order.nudge != 0 || (truth_.inexact && !sites.empty());
  for (int64_t at = window.start_step + 1; at <= window.start_step + window.steps; ++at) {
    const double loss = step_loss(at, total, sites, queued.order.nudge != 0);
    if (truth_.damage && damaged) total += truth_.damage(at, sites);
    if (!std::isfinite(loss)) total = loss;
    result.steps.push_back(at);
    result.losses.push_back(loss);
    const double run = reported_loss(window.attempt, at);
    result.run_losses.push_back(run);
    if (was_reported(window.attempt, at)) {
      const bool same_loss = loss == run || (std::isnan(loss) && std::isnan(run));
      const bool flipped = flipped_.contains({window.attempt, at});
      const auto& others = truth_.other_batches;
      const bool other = std::find(others.begin(), others.end(), at) != others.end() && flipped;
      if (other && !result.first_other_batch_step) result.first_other_batch_step = at;
      if (other) result.other_batches.push_back({at, "of step 332", fmt::format("of step {}", at)});
      if (flipped && truth_.stuck && queued.order.on_trainer) total += 20;
      result.compared_steps += 1;
      differs = differs || !same_loss || (flipped && !(truth_.stuck && queued.order.on_trainer));
      if (differs && !result.first_mismatch_step) result.first_mismatch_step = at;
    }
    if (!std::isfinite(loss)) break;
  }
  if (bad) total += 20;
}

void SimulatedRun::score(const Queued& queued, const std::set<std::string>& sites,
                         ReplayFinished& result) {
  for (const std::string& site : sites) {
    if (run_choice_of_site(site) != nullptr) continue;  // no analysis scores it
    const double own = truth_.damage ? truth_.damage(queued.window.start_step + 1, {site}) : 0.0;
    const double noise =
        philox_uniform(philox(11, site.size(), static_cast<uint64_t>(queued.window.start_step))[0]);
    double phi = own / 100 + 1e-5 * noise;
    for (int64_t i = 1; truth_.bump && i <= queued.window.steps; ++i) {
      const double bump = truth_.bump(queued.window.start_step + i, {site});
      if (!std::isfinite(bump)) phi = bump;  // the loss with it alone in FP8 is measured
    }
    result.scores.push_back({site, phi, 0, 25});
  }
}

ReplayFinished SimulatedRun::replay(const Queued& queued) {
  const OpenWindow& window = queued.window;
  const OrderReplay& order = queued.order;
  ReplayFinished result;
  result.replay = order.replay;
  result.window = window.window;
  result.arm = order.arm;
  result.purpose = order.purpose;
  result.verifier = next_verifier(order);
  result.on_trainer = order.on_trainer;
  result.fingerprint_equal = truth_.equal_fingerprints;
  const Saved* start = find_saved(window.start_uri);
  EXPECT_NE(start, nullptr) << window.start_uri << " was deleted before its replay";
  if (start == nullptr) return result;
  const bool bf16 = order.arm.starts_with("bf16");
  const std::string plan = order.plan.empty() ? start->plan : order.plan;
  const std::set<std::string> sites = bf16 ? std::set<std::string>() : fp8(plan);
  if (order.arm == "scores") {
    score(queued, sites, result);
    return result;
  }
  double total = start->damage;
  replay_steps(queued, sites, total, result);
  result.step_seconds =
      static_cast<double>(window.steps) * (sites.empty() ? truth_.bf16_step_seconds : 1);
  result.seconds = result.step_seconds + truth_.replay_overhead_seconds;
  const int64_t end_step = window.start_step + window.steps;
  // Paired noise: the plain replays of a window differ by one draw, nudged ones by one of their
  // own.
  const uint64_t draw =
      static_cast<uint64_t>(window.start_step * 64 + order.nudge * 2 + (bf16 ? 0 : 1));
  double noise = truth_.noise_percent *
                 (philox_uniform(philox(9, 2, static_cast<uint64_t>(window.start_step))[0]) - 0.3);
  // A machine of another kind rounds otherwise, and so does one whose order of sums varies: that is
  // as good as a nudge.
  const bool exact = truth_.equal_fingerprints && !truth_.inexact;
  const bool as_the_run = order.nudge == 0 && (exact || sites.empty());
  // What is the window's own is a sum over its FP8 sites.
  const double all_fp8 = truth_.of_window ? truth_.of_window(window.start_step) : 0;
  const auto share = [&](size_t fp8_sites) {
    return all_fp8 * static_cast<double>(fp8_sites) / static_cast<double>(sites_.size());
  };
  const double own =
      share(sites.size()) +
      (as_the_run ? (sites.empty() ? 0 : noise)
                  : truth_.noise_percent * (philox_uniform(philox(9, 5, draw)[0]) - 0.5));
  const double order_of_sums = order.arm == "bf16-perturbed" ? truth_.perturbed_percent : 0;
  if (std::isfinite(total))
    result.replay_end_loss_bf16 = held_out(end_step, total + own + order_of_sums);
  const bool differs = !sites.empty() && (result.verifier == truth_.bad_verifier ||
                                          result.verifier == truth_.sound_verifier);
  result.end_hash = fmt::format("{}-{}-{}-{}{}", window.start_uri, end_step, plan.size() * !bf16,
                                (bf16 ? truth_.bf16_differs : truth_.inexact) ? ++other_bits_ : 0,
                                differs ? result.verifier : "");
  if (!order.evaluate_endpoints) return result;
  const bool drifts = truth_.drift && (order.arm != "fakequant" || !truth_.in_kernel);
  const double drift = drifts ? truth_.drift(window.start_step) : 0;
  const double flutter = 0.002 * philox_uniform(philox(9, 3, static_cast<uint64_t>(end_step))[0]);
  result.start_loss_bf16 = held_out(window.start_step, start->damage);
  const Saved* end = find_saved(window.end_uri);
  const bool pinned = end != nullptr && fp8(end->plan).size() < sites_.size();
  const double offset =
      pinned ? truth_.pinned_offset_percent.value_or(truth_.offset_percent) : truth_.offset_percent;
  result.start_loss_plan = *result.start_loss_bf16 * (1 + (offset + drift + flutter) / 100);
  EXPECT_NE(end, nullptr) << window.end_uri << " was deleted before its replay";
  if (end != nullptr) {
    const size_t run_fp8 = fp8(end->plan).size();
    result.run_end_loss_bf16 =
        held_out(end_step, end->damage + share(run_fp8) + (run_fp8 > 0 ? noise : 0));
  }
  return result;
}

bool SimulatedRun::answer_next() {
  const auto queued = pop_next_replay();
  if (!queued) return false;
  ReplayFinished answer = replay(*queued);
  if (lie) lie(answer);
  feed(answer);
  return true;
}

void SimulatedRun::drain() {
  while (answer_next()) {
  }
}

void SimulatedRun::advance() {
  train_step();
  verifier_credit_ = std::min<int64_t>(verifier_credit_ + truth_.replays_per_step_percent,
                                       std::max<int64_t>(100, truth_.replays_per_step_percent));
  while (verifier_credit_ >= 100 && answer_next()) verifier_credit_ -= 100;
  obey();
  if (now >= next_deadline(state)) feed(Tick{});
}

void SimulatedRun::train_until(int64_t last) {
  while (step < last && !paused) advance();
}

void SimulatedRun::train_until_phase(const std::string& phase, int64_t step_max) {
  while (phase_name(state) != phase && step < step_max && !paused) advance();
  EXPECT_EQ(phase_name(state), phase) << "at step " << step;
}

void SimulatedRun::restart_from(int64_t at) {
  const Saved* found = find_saved(at);
  ASSERT_NE(found, nullptr);
  plan_ = found->plan;
  plan_version_ = found->plan_version;
  begin_attempt(Saved(*found), "restart");
}

void SimulatedRun::end(const std::string& outcome) {
  feed(RunEnded{test::any_word(outcome), step});
}

std::vector<RecordDecision> SimulatedRun::decisions(const std::string& kind) const {
  std::vector<RecordDecision> result;
  for (const Effect& effect : effects) {
    const auto* decision = std::get_if<RecordDecision>(&effect);
    if (decision != nullptr && (kind.empty() || decision->kind == kind))
      result.push_back(*decision);
  }
  return result;
}

std::vector<IssueDirective> SimulatedRun::directives(const std::string& kind) const {
  std::vector<IssueDirective> result;
  for (const Effect& effect : effects) {
    const auto* directive = std::get_if<IssueDirective>(&effect);
    if (directive != nullptr && (kind.empty() || directive->kind == kind))
      result.push_back(*directive);
  }
  return result;
}

int64_t SimulatedRun::orders(const std::string& purpose) const {
  return std::count_if(effects.begin(), effects.end(), [&](const Effect& effect) {
    const auto* order = std::get_if<OrderReplay>(&effect);
    return order != nullptr && order->purpose == purpose;
  });
}

int64_t SimulatedRun::closed(const std::string& outcome) const {
  return std::count_if(effects.begin(), effects.end(), [&](const Effect& effect) {
    const auto* close = std::get_if<CloseWindow>(&effect);
    return close != nullptr && close->outcome == outcome;
  });
}

}  // namespace gnomon::decide
