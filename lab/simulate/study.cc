#include "lab/simulate/study.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "base/stopwatch.h"
#include "lab/simulate/stochastic_run.h"

namespace gnomon::simulate {
namespace {

constexpr double kNormal = 1.959963984540054;  // 97.5%
constexpr size_t kProblemsKeptOfStudy = 16;

// Wilson and Hilferty's approximation of a chi-square quantile over 2n degrees of freedom, halved.
double poisson_limit(int64_t n, double normal) {
  if (n == 0) return 0;
  const double m = static_cast<double>(n);
  return m * std::pow(std::max(0.0, 1 - 1 / (9 * m) + normal / (3 * std::sqrt(m))), 3);
}

void check(const StudyOptions& options, size_t policies) {
  const auto refuse = [](const char* what, int64_t value, const char* accepted) {
    throw ConfigError("", 0, what, std::to_string(value), accepted);
  };
  if (options.runs < 1 || options.runs > 100'000) refuse("runs", options.runs, "from 1 to 100000");
  if (options.threads < 1 || options.threads > 1024)
    refuse("threads", options.threads, "from 1 to 1024");
  if (policies < 1) refuse("policies", 0, "at least one");
}

void add(FaultSummary& to, const FaultTally& fault, std::vector<double>& windows,
         std::vector<double>& steps) {
  to.felt += 1;
  to.alarmed += fault.alarmed ? 1 : 0;
  to.answered += fault.answered ? 1 : 0;
  if (!fault.harmful()) return;
  to.harmful += 1;
  to.harmful_answered += fault.answered ? 1 : 0;
  if (!fault.alarmed) return;
  to.harmful_alarmed += 1;
  windows.push_back(static_cast<double>(fault.delay_windows));
  steps.push_back(static_cast<double>(fault.delay_steps));
}

void summarise_faults(const std::vector<Tally>& runs, Summary& summary) {
  std::array<std::vector<double>, kFaultKinds + 1> windows, steps;
  for (const Tally& run : runs) {
    for (const FaultTally& fault : run.faults) {
      const auto kind = static_cast<size_t>(fault.kind);
      add(summary.faults[kind], fault, windows[kind], steps[kind]);
      add(summary.all_faults, fault, windows[kFaultKinds], steps[kFaultKinds]);
    }
  }
  for (size_t kind = 0; kind <= kFaultKinds; ++kind) {
    FaultSummary& of = kind < kFaultKinds ? summary.faults[kind] : summary.all_faults;
    of.delay_windows = spread(std::move(windows[kind]));
    of.delay_steps = spread(std::move(steps[kind]));
  }
}

void summarise_verdicts(const std::vector<Tally>& runs, Summary& summary) {
  for (size_t cause = 0; cause < kCauses; ++cause) {
    for (size_t verdict = 0; verdict < kVerdicts.size(); ++verdict) {
      int64_t count = 0;
      for (const Tally& run : runs) count += run.verdicts[cause][verdict];
      summary.verdicts[cause][verdict] = count;
      summary.judged += count;
      summary.rightly += is_right(cause, verdict) ? count : 0;
    }
  }
}

void summarise_money(const std::vector<Tally>& runs, Summary& summary) {
  double trained = 0, lost = 0, bf16 = 0, pinned = 0, seconds = 0, verification = 0;
  std::vector<double> net, by_core, damage;
  for (const Tally& run : runs) {
    trained += static_cast<double>(run.trained);
    lost += static_cast<double>(run.lost);
    bf16 += static_cast<double>(run.bf16_steps);
    pinned += static_cast<double>(run.pinned_steps);
    seconds += run.seconds;
    verification += run.verification_seconds;
    net.push_back(run.net_speedup);
    by_core.push_back(run.net_speedup_by_core);
    damage.push_back(run.damage_percent);
    summary.not_finite += std::isfinite(run.damage_percent) ? 0 : 1;
    summary.damaged += run.damage_percent < kHarmPercent ? 0 : 1;
  }
  if (trained > 0) {
    summary.lost_share = lost / trained;
    summary.bf16_share = bf16 / trained;
    summary.pinned_share = pinned / trained;
  }
  if (seconds > 0) summary.verification_share = verification / seconds;
  summary.net_speedup = spread(std::move(net));
  summary.net_speedup_by_core = spread(std::move(by_core));
  summary.damage_percent = spread(std::move(damage));
}

}  // namespace

double FaultSummary::caught_share() const {
  return harmful > 0 ? static_cast<double>(harmful_alarmed) / static_cast<double>(harmful) : NAN;
}

Rate rate(int64_t count, int64_t of) {
  Rate made{count, of, 0, 0, 0};
  if (of <= 0) return made;
  const double thousands = static_cast<double>(of) / 1000;
  made.per_thousand = static_cast<double>(count) / thousands;
  made.low = poisson_limit(count, -kNormal) / thousands;
  made.high = poisson_limit(count + 1, kNormal) / thousands;
  return made;
}

Spread spread(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  Spread made;
  made.count = static_cast<int64_t>(values.size());
  if (values.empty()) return made;
  std::ranges::sort(values);
  // By rank: the smallest value that so large a share does not exceed.
  const auto at = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<size_t>(rank, 1) - 1];
  };
  double sum = 0;
  for (const double value : values) sum += value;
  made.mean = sum / static_cast<double>(values.size());
  made.low = at(0.05);
  made.median = at(0.5);
  made.high = at(0.95);
  return made;
}

StudyRuns simulate_runs(const RunModel& model, const std::vector<decide::Policy>& policies,
                        const StudyOptions& options) {
  check_model(model);
  check(options, policies.size());
  const std::vector<double> curve = loss_curve(model.steps);
  StudyRuns study;
  study.by_policy.resize(policies.size());
  for (auto& runs : study.by_policy) runs.resize(static_cast<size_t>(options.runs));
  const Stopwatch watch;
  const int64_t total = options.runs * static_cast<int64_t>(policies.size());
  std::atomic<int64_t> next = 0;
  std::mutex mutex;  // of what follows
  int64_t done = 0;
  std::exception_ptr failure;
  const auto work = [&] {
    try {
      for (int64_t job = next++; job < total; job = next++) {
        const auto policy = static_cast<size_t>(job % static_cast<int64_t>(policies.size()));
        const int64_t run = job / static_cast<int64_t>(policies.size());
        StochasticRun played(model, curve, policies[policy],
                             options.seed + static_cast<uint64_t>(run));
        Tally tally = played.run();
        const std::lock_guard lock(mutex);
        study.by_policy[policy][static_cast<size_t>(run)] = std::move(tally);
        done += 1;
        if (options.progress) options.progress(done);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
      next = total;
    }
  };
  std::vector<std::thread> threads;
  for (int i = 1; i < options.threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure) std::rethrow_exception(failure);
  study.duration = watch.read();
  return study;
}

Summary summarise(const std::vector<Tally>& runs) {
  Summary summary;
  summary.runs = static_cast<int64_t>(runs.size());
  int64_t false_alarms = 0, unfounded = 0;
  for (const Tally& run : runs) {
    summary.outcomes[run.outcome] += 1;
    summary.windows += run.windows;
    summary.healthy_windows += run.healthy_windows;
    summary.skipped_windows += run.skipped_windows;
    summary.failed_windows += run.failed_windows;
    summary.replays += run.replays;
    summary.alarms += run.alarms;
    summary.actions += run.actions;
    summary.returns += run.returns;
    summary.holds += run.holds;
    summary.crashes += run.crashes;
    summary.verifier_deaths += run.verifier_deaths;
    summary.pins += run.pins;
    summary.right_pins += run.right_pins;
    false_alarms += run.false_alarms;
    unfounded += run.unfounded_actions;
    for (const std::string& problem : run.problems) {
      if (summary.problems.size() < kProblemsKeptOfStudy) summary.problems.push_back(problem);
    }
  }
  summary.false_alarms = rate(false_alarms, summary.healthy_windows);
  summary.unfounded_actions = rate(unfounded, summary.windows);
  summarise_faults(runs, summary);
  summarise_verdicts(runs, summary);
  summarise_money(runs, summary);
  return summary;
}

}  // namespace gnomon::simulate
