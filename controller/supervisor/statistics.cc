#include "controller/supervisor/statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "controller/auth/http_error.h"
#include "controller/supervisor/checks.h"
#include "protocol/json.h"
#include "storage/ledger_statistics.h"

namespace gnomon {
namespace {

[[noreturn]] void refuse(size_t row, const char* member, const std::string& value,
                         const std::string& accepted) {
  throw HttpError(400, "Bad value", fmt::format("rows[{}].{} is \"{}\"", row, member, value),
                  accepted);
}

void check_rows(const StatisticsReport& report, const std::vector<std::string>& sites) {
  for (size_t i = 0; i < report.rows.size(); ++i) {
    const StatisticsRow& row = report.rows[i];
    if (std::ranges::find(sites, row.site) == sites.end()) {
      refuse(i, "site", row.site, "a GEMM site of the run's registration");
    }
    if (row.gemm.empty() != row.recipe.empty()) {
      refuse(i, "recipe", row.recipe, "a recipe for a GEMM's rounding, and nothing for a tensor");
    }
  }
}

}  // namespace

ReportAck report_statistics(WriteContext write, int64_t id, const StatisticsReport& report) {
  CachedRun& run = write.runs.load(write.transaction, id);
  require_step_of(run.registration, report.step, "step", 1);
  check_rows(report, run.registration.sites);
  known_attempt(write.transaction.connection(), id, report.attempt);
  // No decision rests on a plan's number here, but one that the trainer chose itself is announced.
  if (report.plan_version < 0) check_plan(write.transaction.connection(), run, report.plan_version);
  std::vector<std::string> bodies;
  for (const StatisticsRow& row : report.rows) bodies.push_back(to_json(row));
  const int64_t inserted = ledger::insert_statistics(write.transaction.connection(), id, report,
                                                     bodies, write.runs.now());
  if (inserted > 0) {
    write.transaction.on_commit([&runs = write.runs, id, report] {
      runs.metrics().update_run(id,
                                [&](RunNumbers& numbers) { record_statistics(numbers, report); });
    });
  }
  return report_ack(write.transaction, run, inserted, std::ssize(report.rows) - inserted);
}

}  // namespace gnomon
