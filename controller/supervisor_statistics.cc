// Tensor statistics that trainers report: kept for people and shown in the metrics; no decision
// rests on them yet.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "controller/refusal.h"
#include "controller/supervisor.h"
#include "protocol/json.h"
#include "storage/ledger_statistics.h"

namespace gnomon {
namespace {

constexpr size_t kRowTextMax = 100;

[[noreturn]] void refuse(size_t row, const char* member, const std::string& value,
                         const std::string& accepted) {
  throw Refusal(400, "Bad value", fmt::format("rows[{}].{} is \"{}\"", row, member, value),
                accepted);
}

bool is_one_of(const std::string& value, std::initializer_list<std::string_view> accepted) {
  return std::ranges::find(accepted, value) != accepted.end();
}

void check_rows(const StatisticsReport& report, const std::vector<std::string>& sites) {
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const StatisticsRow& row = report.rows[i];
    if (std::ranges::find(sites, row.site) == sites.end()) {
      refuse(i, "site", row.site, "a GEMM site of the run's registration");
    }
    if (!is_one_of(row.tensor, {"input", "weight", "gradient", "output", "weight_gradient"})) {
      refuse(i, "tensor", row.tensor, "input, weight, gradient, output, weight_gradient");
    }
    if (!is_one_of(row.gemm, {"", "fprop", "dgrad", "wgrad"})) {
      refuse(i, "gemm", row.gemm, "fprop, dgrad, wgrad, or nothing for the tensor itself");
    }
    if (row.gemm.empty() != row.recipe.empty() || row.recipe.size() > kRowTextMax) {
      refuse(i, "recipe", row.recipe, "a recipe for a GEMM's rounding, and nothing for a tensor");
    }
    if (row.elements < 0 || row.histogram_below < 0 ||
        std::ranges::any_of(row.histogram, [](int64_t count) { return count < 0; })) {
      refuse(i, "elements", fmt::format("{}", row.elements),
             "counts of 0 or more, in histogram and histogram_below too");
    }
    if (row.histogram.size() > kRowTextMax) {
      refuse(i, "histogram", fmt::format("{} bins", row.histogram.size()),
             fmt::format("at most {} bins", kRowTextMax));
    }
  }
}

}  // namespace

ReportAck Supervisor::report_statistics(LedgerTransaction& transaction, int64_t id,
                                        const StatisticsReport& report) {
  Run& run = load(transaction, id);
  constexpr size_t kRowsMax = 4'096;
  require_step_of(run.registration, report.step, "step", 1);
  if (report.attempt < 1 || !std::isfinite(report.time)) {
    throw Refusal(400, "Bad value", fmt::format("attempt {}, time {}", report.attempt, report.time),
                  "attempt from 1, time in seconds since the epoch");
  }
  if (report.rows.size() > kRowsMax) {
    throw Refusal(413, "Too many rows in one report", fmt::format("{} rows", report.rows.size()),
                  fmt::format("at most {}", kRowsMax));
  }
  check_rows(report, run.registration.sites);
  known_attempt(transaction.connection(), id, report.attempt);
  // No decision rests on a plan's number here, but one that the trainer chose itself is announced.
  if (report.plan_version < 0) check_plan(transaction.connection(), run, report.plan_version);
  std::vector<std::string> bodies;
  for (const StatisticsRow& row : report.rows) bodies.push_back(to_json(row));
  const int64_t inserted =
      ledger::insert_statistics(transaction.connection(), id, report, bodies, now());
  if (inserted > 0) {
    transaction.on_commit([this, id, report] {
      metrics_.update_run(id, [&](RunSeries& series) { series.statistics(report); });
    });
  }
  return ack(transaction, run, inserted, std::ssize(report.rows) - inserted);
}

}  // namespace gnomon
