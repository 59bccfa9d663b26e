#include "controller/metrics/run_series.h"

#include <algorithm>
#include <array>

namespace gnomon {
namespace {

constexpr std::array kPhases = {"watching",  "triage",    "attribution", "containing",
                                "contained", "returning", "holding",     "ended"};
constexpr std::array kOutcomes = {"quiet", "alarm", "skipped", "failed"};
constexpr size_t kLayersMax = 200;

auto& counter_family(SeriesRegistry& registry, const char* name, const char* help) {
  return registry.counter(name, help);
}

double total(const std::map<std::string, double>& totals, const std::string& key) {
  auto found = totals.find(key);
  return found == totals.end() ? 0 : found->second;
}

}  // namespace

RunFamilies::RunFamilies(SeriesRegistry& r)
    : state(r.gauge("gnomon_run_state", "1 for the run's present state, 0 for the others")),
      paused(r.gauge("gnomon_run_paused", "1 while the trainer stands still by an order")),
      step(r.gauge("gnomon_run_step", "newest step reported")),
      attempt(r.gauge("gnomon_run_attempt", "present attempt")),
      plan_version(r.gauge("gnomon_run_plan_version", "plan of the newest step")),
      loss(r.gauge("gnomon_run_loss", "newest training loss, nats per token")),
      shadow_loss(r.gauge("gnomon_run_shadow_loss",
                          "BF16 shadow's training loss at the newest verified step")),
      paired_loss(
          r.gauge("gnomon_run_paired_loss", "the run's own training loss at that same step")),
      grad_norm(r.gauge("gnomon_run_grad_norm", "newest gradient norm before clipping")),
      learning_rate(r.gauge("gnomon_run_learning_rate", "newest learning rate")),
      last_report(
          r.gauge("gnomon_run_last_report_timestamp_seconds", "when the newest step report came")),
      gap(r.gauge("gnomon_run_gap_ratio", "newest window's gap as a share of the loss")),
      gap_tolerance(r.gauge("gnomon_run_gap_tolerance_ratio", "the tolerance on the gap")),
      offset(r.gauge("gnomon_run_offset_ratio", "newest window's offset as a share of the loss")),
      verification_lag(
          r.gauge("gnomon_run_verification_lag_steps", "newest step minus the last verified one")),
      verified_step(r.gauge("gnomon_run_verified_step", "step of the last verified checkpoint")),
      layer_precision(r.gauge("gnomon_run_layer_precision", "share of the layer's GEMMs in FP8")),
      net_speedup(r.gauge("gnomon_run_net_speedup_ratio",
                          "measured speed over BF16 without verification, everything paid")),
      speedup(r.gauge("gnomon_run_speedup_ratio", "BF16's measured step time over FP8's")),
      verification_share(r.gauge("gnomon_run_verification_ratio",
                                 "share of everything paid that went into verification")),
      hazard(r.gauge("gnomon_run_hazard_per_step", "faults of FP8 per FP8 step, as learned")),
      steps_lost(r.gauge("gnomon_run_steps_lost", "steps that rollbacks took away")),
      verdict(r.gauge("gnomon_run_verdict", "1 for the run's verdict now, 0 for the others")),
      window_every(r.gauge("gnomon_run_window_every_steps",
                           "steps from one window's start to the next, as in force")),
      replays_waiting(
          r.gauge("gnomon_run_replays_waiting", "replays ordered for the run and not answered")),
      directives_unapplied(
          r.gauge("gnomon_run_directives_unapplied",
                  "directives overdue, and those refused or expired since one was applied")),
      quarantined_verifiers(r.gauge("gnomon_run_quarantined_verifiers",
                                    "verifiers whose answers the run does not believe any more")),
      instrument_broken(r.gauge("gnomon_run_instrument_broken",
                                "1 while equal BF16 replays give different bits")),
      tokens(counter_family(r, "gnomon_run_tokens_total", "tokens trained, over all attempts")),
      steps(counter_family(r, "gnomon_run_steps_total", "steps reported, over all attempts")),
      windows(counter_family(r, "gnomon_run_windows_total", "windows closed")),
      decisions(counter_family(r, "gnomon_run_decisions_total", "decisions made")),
      directives(counter_family(r, "gnomon_run_directives_total", "directives issued")),
      notices(counter_family(r, "gnomon_trainer_notices_total", "notices of trainers")),
      train_seconds(
          counter_family(r, "gnomon_run_train_seconds_total", "compute spent in training steps")),
      verify_seconds(counter_family(r, "gnomon_run_verify_seconds_total",
                                    "compute spent in replays and evaluations")),
      step_duration(r.histogram("gnomon_run_step_duration_seconds", "wall time of a step")),
      tensors(r),
      device(r) {}

const std::vector<double>& step_duration_buckets() {
  static const std::vector<double> buckets = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                              1,     2.5,  5,     10,   30,  60,   120};
  return buckets;
}

template <typename Metric, typename... Arguments>
Metric& RunSeries::add(SeriesFamily<Metric>& family, Labels labels, const Arguments&... arguments) {
  labels["run"] = label_;
  Metric& metric = family.add(labels, arguments...);
  removers_.push_back([&family, &metric] { family.remove(&metric); });
  return metric;
}

RunSeries::RunSeries(RunFamilies& families, const std::string& label, const RunTotals& totals)
    : families_(families),
      label_(label),
      tokens_(add(families.tokens, {})),
      steps_(add(families.steps, {})),
      train_seconds_(add(families.train_seconds, {})),
      verify_seconds_(add(families.verify_seconds, {})),
      step_duration_(add(families.step_duration, {}, step_duration_buckets())),
      tensors_(families.tensors, label),
      device_(families.device, label) {
  tokens_.Increment(totals.tokens);
  steps_.Increment(totals.steps);
  train_seconds_.Increment(totals.train_seconds);
  verify_seconds_.Increment(totals.verify_seconds);
  if (totals.step_duration_counts.size() == step_duration_buckets().size() + 1) {
    step_duration_.ObserveMultiple(totals.step_duration_counts, totals.train_seconds);
  }
  for (const char* phase : kPhases) {
    phases_[phase] = &add(families.state, {{"state", phase}});
  }
  for (const decide::VerdictKind kind : decide::kVerdictKinds) {
    verdicts_[kind] =
        &add(families_.verdict, {{"verdict", std::string(decide::verdict_name(kind))}});
  }
  if (totals.phase == "ended") set_ended();
  for (const char* outcome : kOutcomes) {
    counter(families.windows, "outcome", outcome).Increment(total(totals.windows, outcome));
  }
  for (const std::string_view name : kDecisionKinds) {
    const std::string kind(name);
    counter(families.decisions, "kind", kind).Increment(total(totals.decisions, kind));
  }
  for (const std::string_view name : kDirectiveKinds) {
    const std::string kind(name);
    counter(families.directives, "kind", kind).Increment(total(totals.directives, kind));
  }
  const auto count_notices = [&](std::string_view name) {
    const std::string kind(name);
    counter(families.notices, "kind", kind).Increment(total(totals.notices, kind));
  };
  std::ranges::for_each(kTrainerNoticeKinds, count_notices);
  std::ranges::for_each(kOwnNoticeKinds, count_notices);
  set_phase(totals.phase);
  set_paused(totals.paused);
  if (totals.attempt > 0) {
    set_attempt(totals.attempt);
  }
  if (totals.newest_window) {
    show_window(*totals.newest_window);
  }
  if (totals.newest_step) {
    show_newest(*totals.newest_step, totals.newest_step->time);
  }
  if (totals.verified_step) {
    set_verified_step(*totals.verified_step);
  }
  if (totals.shadow_and_run_loss) {
    set_shadow(totals.shadow_and_run_loss->first, totals.shadow_and_run_loss->second);
  }
  set_layers(totals.layers);
  if (totals.money) {
    set_money(*totals.money);
  }
  if (totals.health) {
    device_.take(totals.health->first, totals.health->second);
  }
}

RunSeries::~RunSeries() {
  for (auto& remove : removers_) {
    remove();
  }
  for (auto& [family, metric] : passing_) family->remove(metric);
}

void RunSeries::set(GaugeFamily& family, double value) {
  prometheus::Gauge*& found = gauges_[&family];
  if (!found) {
    found = &add(family, {});
  }
  found->Set(value);
}

void RunSeries::set(GaugeFamily& family, std::optional<double> value) {
  auto found = passing_.find(&family);
  if (value) {
    if (found == passing_.end())
      found = passing_.emplace(&family, &family.add({{"run", label_}})).first;
    found->second->Set(*value);
  } else if (found != passing_.end()) {
    family.remove(found->second);
    passing_.erase(found);
  }
}

prometheus::Counter& RunSeries::counter(CounterFamily& family, const std::string& name,
                                        const std::string& value) {
  prometheus::Counter*& found = counters_[family.name() + "/" + value];
  if (!found) {
    found = &add(family, {{name, value}});
  }
  return *found;
}

void RunSeries::set_paused(bool paused) { set(families_.paused, paused ? 1 : 0); }

void RunSeries::set_phase(const std::string& phase) {
  for (auto& [name, metric] : phases_) {
    metric->Set(name == phase ? 1 : 0);
  }
}

void RunSeries::set_attempt(int64_t attempt) {
  set(families_.attempt, static_cast<double>(attempt));
}

void RunSeries::step(const StepReport& report, double reported_at) {
  tokens_.Increment(static_cast<double>(report.tokens));
  steps_.Increment();
  train_seconds_.Increment(report.step_seconds);
  step_duration_.Observe(report.step_seconds);
  show_newest(report, reported_at);
}

void RunSeries::show_newest(const StepReport& report, double reported_at) {
  set(families_.step, static_cast<double>(report.step));
  set(families_.plan_version, static_cast<double>(report.plan_version));
  set(families_.loss, report.loss);
  set(families_.grad_norm, report.grad_norm);
  set(families_.learning_rate, report.learning_rate);
  set(families_.last_report, reported_at);
}

void RunSeries::set_layers(const std::vector<std::pair<std::string, double>>& layers) {
  for (const auto& [layer, share] : layers) {
    prometheus::Gauge*& found = layers_[layer];
    if (!found) {
      if (layers_.size() > kLayersMax) {
        layers_.erase(layer);
        return;
      }
      found = &add(families_.layer_precision, {{"layer", layer}});
    }
    found->Set(share);
  }
}

void RunSeries::set_verified_step(int64_t step) {
  set(families_.verified_step, static_cast<double>(step));
}

void RunSeries::set_shadow(double shadow_loss, double run_loss) {
  set(families_.shadow_loss, shadow_loss);
  set(families_.paired_loss, run_loss);
}

void RunSeries::set_money(const MoneyNumbers& money) {
  set(families_.net_speedup, money.net_speedup);
  set(families_.speedup, money.speedup);
  set(families_.verification_share, money.verification_share);
  set(families_.hazard, money.hazard_per_step);
  set(families_.steps_lost, static_cast<double>(money.steps_lost));
}

void RunSeries::window(const WindowNumbers& window) {
  counter(families_.windows, "outcome", window.outcome).Increment();
  show_window(window);
}

// Windows end in any order: the newest one that was measured is shown.
void RunSeries::show_window(const WindowNumbers& window) {
  if (!window.gap_ratio || window.window < shown_window_) return;
  shown_window_ = window.window;
  if (window.gap_ratio) {
    set(families_.gap, *window.gap_ratio);
  }
  if (window.tolerance_ratio) {
    set(families_.gap_tolerance, *window.tolerance_ratio);
  }
  if (window.offset_ratio) {
    set(families_.offset, *window.offset_ratio);
  }
}

void RunSeries::show_verdict(decide::VerdictKind kind) {
  for (auto& [name, metric] : verdicts_) metric->Set(name == kind ? 1 : 0);
}

void RunSeries::set_ended() { show_verdict(decide::VerdictKind::kEnded); }

void RunSeries::set_verdict(decide::VerdictKind kind, const decide::VerdictFacts& facts) {
  show_verdict(kind);
  if (facts.newest_step > 0) set(families_.verification_lag, static_cast<double>(facts.lag_steps));
  set(families_.window_every, static_cast<double>(facts.every_steps));
  set(families_.replays_waiting, static_cast<double>(facts.replays_waiting));
  set(families_.directives_unapplied, static_cast<double>(facts.directives_unapplied));
  set(families_.quarantined_verifiers, static_cast<double>(facts.quarantined_verifiers));
  set(families_.instrument_broken, facts.instrument_broken ? 1.0 : 0.0);
}

void RunSeries::decision(const std::string& kind) {
  counter(families_.decisions, "kind", kind).Increment();
}

void RunSeries::directive(const std::string& kind) {
  counter(families_.directives, "kind", kind).Increment();
}

void RunSeries::notice(const std::string& kind) {
  counter(families_.notices, "kind", kind).Increment();
}

void RunSeries::verify_seconds(double seconds) { verify_seconds_.Increment(seconds); }

}  // namespace gnomon
