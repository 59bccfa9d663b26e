#include "controller/supervisor/health.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "controller/supervisor/notices.h"
#include "protocol/json.h"
#include "storage/ledger_health.h"
#include "storage/ledger_notices.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// Errors that continue are reported again after so long, not with every sample.
constexpr double kNoticeEverySeconds = 600;

TrainerNotice errors_grew(const StepReport& report, const DeviceHealthRow& row, int64_t before) {
  const int64_t more = *row.ecc_uncorrected - before;
  TrainerNotice notice;
  notice.attempt = report.attempt;
  notice.step = report.step;
  notice.kind = TrainerNoticeKind::on_record(kEccErrors);
  notice.text = fmt::format(
      "the GPU at {}{} counts {} more uncorrected ECC error{}, {} since its driver was loaded: the "
      "device may be to blame for what the run has computed lately",
      row.device, row.host.empty() ? "" : " of " + row.host, more, more == 1 ? "" : "s",
      *row.ecc_uncorrected);
  notice.time = row.sampled_at;
  return notice;
}

// True when a notice of this kind is as new as that.
bool notified_lately(Connection& connection, int64_t run, double time) {
  Query newest = connection.query(
      "SELECT max(noticed_at) FROM notices WHERE run = ? AND kind = 'ecc_errors'", run);
  const std::optional<double> reported = newest.next() ? newest.optional_real(0) : std::nullopt;
  return reported && std::abs(time - *reported) < kNoticeEverySeconds;
}

}  // namespace

std::string record_health(WriteContext write, const CachedRun& run, const StepReport& report) {
  const DeviceHealth& health = *report.device_health;
  Connection& connection = write.transaction.connection();
  const std::optional<AttemptRow> attempt =
      ledger::find_attempt(connection, run.id, report.attempt);
  const std::optional<DeviceHealthRow> before = ledger::newest_health(connection, run.id);
  DeviceHealthRow row{.run = run.id,
                      .attempt = report.attempt,
                      .step = report.step,
                      .host = attempt ? attempt->host : "",
                      .device = health.device,
                      .sampled_at = health.time,
                      .reported_at = write.runs.now(),
                      .ecc_uncorrected = health.ecc_uncorrected,
                      .body = to_json(health)};
  const bool same = before && before->host == row.host && before->device == row.device;
  row.ecc_told = same ? before->ecc_told : std::nullopt;
  if (row.ecc_uncorrected) {
    const int64_t count = *row.ecc_uncorrected;
    // Fewer than before: the driver was loaded again and counts from 0.
    const int64_t reported = !row.ecc_told ? count : count < *row.ecc_told ? 0 : *row.ecc_told;
    row.ecc_told = reported;
    if (count > reported && !notified_lately(connection, run.id, health.time)) {
      add_notice(write, run, errors_grew(report, row, reported));
      row.ecc_told = count;
    }
  }
  ledger::insert_health(connection, row);
  return row.host;
}

}  // namespace gnomon
