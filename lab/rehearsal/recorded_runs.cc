#include "lab/rehearsal/recorded_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/errors.h"

namespace gnomon::rehearsal {
namespace {

using Group = std::pair<std::string, int64_t>;  // configuration, seed
using Ends = std::map<Group, std::vector<double>>;

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

double percent_above(double value, double reference) {
  const double above = 100 * (value - reference) / reference;
  return std::isnan(above) ? std::numeric_limits<double>::infinity() : above;
}

std::map<std::string, double> chance_of(const Ends& ends) {
  std::map<std::string, double> squares, freedom, result;
  for (const auto& [group, losses] : ends) {
    const double mean = mean_of(losses);
    for (double loss : losses) squares[group.first] += std::pow(100 * (loss - mean) / mean, 2);
    freedom[group.first] += static_cast<double>(losses.size()) - 1;
  }
  for (const auto& [name, sum] : squares) {
    if (freedom[name] > 0) result[name] = std::sqrt(sum / freedom[name]);
  }
  return result;
}

std::map<std::string, double> cost_of(const Ends& fp8, const Ends& bf16) {
  std::map<std::string, std::vector<double>> costs;
  for (const auto& [group, losses] : fp8) {
    const auto reference = bf16.find(group);
    if (reference == bf16.end()) continue;
    costs[group.first].push_back(percent_above(mean_of(losses), mean_of(reference->second)));
  }
  std::map<std::string, double> result;
  for (const auto& [name, each] : costs) result[name] = mean_of(each);
  return result;
}

std::optional<double> above(const RecordedRun& run, const Ends& ends) {
  const auto found = ends.find({run.label.configuration, run.label.seed});
  if (found == ends.end()) return std::nullopt;
  return percent_above(run.trace->result.heldout_bf16, mean_of(found->second));
}

// A single run against the mean of its references, of which one may be the same run.
double chance_beside(const RecordedRun& run, const Ends& ends,
                     const std::map<std::string, double>& chance) {
  const auto found = ends.find({run.label.configuration, run.label.seed});
  const auto deviation = chance.find(run.label.configuration);
  if (found == ends.end() || deviation == chance.end()) return 0;
  return deviation->second * std::sqrt(1 + 1 / static_cast<double>(found->second.size()));
}

}  // namespace

double RecordedRun::harmful_above_percent() const {
  return std::max(kHarmPercent, kHarmDeviations * chance_percent);
}

bool RecordedRun::harmful() const {
  if (healthy() || generic() || label.lies) return false;
  if (!above_bf16 || !above_fp8) {
    throw Error(fmt::format("{}, {}, seed {}: no trace of the same run in BF16, or in healthy FP8",
                            label.configuration, label.fault, label.seed));
  }
  return *above_bf16 > kHarmPercent && *above_fp8 > harmful_above_percent();
}

bool RecordedRuns::harmed(const RecordedRun& enforced_run) const {
  return std::ranges::any_of(observed, [&](const RecordedRun& run) {
    return run.key() == enforced_run.key() && run.harmful();
  });
}

RecordedRuns sorted_out(const std::vector<Trace>& traces) {
  RecordedRuns runs;
  Ends bf16, fp8;
  std::vector<RecordedRun> watched;
  for (const Trace& trace : traces) {
    RecordedRun run{&trace, label_of(trace), {}, {}, {}};
    if (run.label.watched) {
      watched.push_back(std::move(run));
    } else {
      (run.label.fp8 ? fp8 : bf16)[{run.label.configuration, run.label.seed}].push_back(
          trace.result.heldout_bf16);
    }
  }
  runs.chance_bf16 = chance_of(bf16);
  runs.chance_fp8 = chance_of(fp8);
  runs.healthy_cost = cost_of(fp8, bf16);
  for (RecordedRun& run : watched) {
    run.above_bf16 = above(run, bf16);
    run.above_fp8 = above(run, fp8);
    run.chance_percent = chance_beside(run, fp8, runs.chance_fp8);
    const bool observed = run.label.mode == "observe";
    if (observed) run.series = series_of(*run.trace);
    (observed ? runs.observed : runs.enforced).push_back(std::move(run));
  }
  return runs;
}

}  // namespace gnomon::rehearsal
