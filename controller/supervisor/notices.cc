#include "controller/supervisor/notices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "controller/auth/http_error.h"
#include "controller/supervisor/alerts.h"
#include "controller/supervisor/checks.h"
#include "protocol/precision_plan.h"
#include "storage/json_rows.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_notices.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

void check_notice(const TrainerNotice& notice, const RunRegistration& registration) {
  require_step_of(registration, notice.step, "step", 0);
  if (notice.kind != "plan_without_controller") {
    require(notice.plan.empty() && notice.plan_version == 0, "plan_version", notice.plan_version,
            "no plan for a notice other than plan_without_controller");
    return;
  }
  require(notice.plan_version != 0, "plan_version", notice.plan_version,
          "the version that step reports carry, below 0 for one that the trainer chose itself");
  PrecisionPlan::parse(notice.plan, "plan")
      .check_sites(registration.sites, registration.layers, "plan");
}

}  // namespace

ReportAck report_notice(WriteContext write, int64_t id, const TrainerNotice& notice) {
  CachedRun& run = write.runs.load(write.transaction, id);
  Connection& connection = write.transaction.connection();
  check_notice(notice, run.registration);
  if (!add_notice(write, run, notice)) {
    return report_ack(write.transaction, run, 0, 1);
  }
  if (!notice.plan.empty()) {
    double time = write.runs.now();
    ledger::insert_plan(connection, id, notice.plan_version, notice.plan, time);
    if (ledger::find_plan(connection, id, notice.plan_version) != notice.plan) {
      ledger::insert_audit(connection, time, id, "conflicting_plan",
                           fmt::format("plan {} of {} is on record with another text than the one "
                                       "the trainer took without the controller",
                                       notice.plan_version, run.label));
    }
  }
  return report_ack(write.transaction, run, 1, 0);
}

void add_own_notice(WriteContext write, int64_t id, std::string_view kind,
                    const std::string& text) {
  const CachedRun& run = write.runs.load(write.transaction, id);
  TrainerNotice notice;
  notice.attempt = run.newest_step.first;
  notice.step = run.newest_step.second;
  notice.kind = TrainerNoticeKind::on_record(kind);
  notice.text = text;
  notice.time = write.runs.now();
  add_notice(write, run, notice);
}

void report_set_aside(WriteContext write, const SetAsideRuns::Entry& entry) {
  if (write.runs.has(entry.run)) {  // it is in memory: what was written down is put right
    write.runs.save_at_end(write.transaction, write.runs.load(write.transaction, entry.run));
    write.transaction.on_commit(
        [&runs = write.runs, id = entry.run] { runs.set_aside().forget(id); });
    return;
  }
  write.transaction.on_commit([&runs = write.runs, id = entry.run] {
    runs.deadlines().set(id, std::numeric_limits<double>::infinity());
    runs.queue().forget_run(id);
  });
  Connection& connection = write.transaction.connection();
  const std::optional<RunRow> row = ledger::load_run(connection, entry.run);
  if (!row) return;
  CachedRun run;
  run.id = row->id;
  run.label = row->label();
  run.registration.name = row->name;
  run.registration.job_id = row->job_id;
  const auto [attempt, step] =
      ledger::newest_step(connection, run.id).value_or(std::pair<int64_t, int64_t>());
  TrainerNotice notice;
  notice.attempt = attempt;
  notice.step = step;
  notice.kind = TrainerNoticeKind::on_record(kRunSetAside);
  notice.text = fmt::format(
      "gnomond cannot serve this run: {}. Training goes on and the trainer's reports wait in its "
      "spool. Stop gnomond, run `gnomon ledger repair`, and start it again",
      entry.reason);
  notice.time = write.runs.now();
  {
    Query known = connection.query("SELECT 1 FROM notices WHERE run = ? AND kind = ? AND text = ?",
                                   run.id, notice.kind, notice.text);
    if (known.next()) return;  // said by the daemon before
  }
  add_notice(write, run, notice);
}

bool add_notice(WriteContext write, const CachedRun& run, const TrainerNotice& notice) {
  Connection& connection = write.transaction.connection();
  const int64_t id = run.id;
  std::optional<int64_t> number = ledger::insert_notice(connection, id, notice, write.runs.now());
  if (!number) return false;
  Query row = connection.query("SELECT * FROM notices WHERE run = ? AND notice = ?", id, *number);
  write.runs.stream(write.transaction, id, "notice", first_row_as_json(row));
  notify_of_notice(write.runs.options().outbox, write.transaction, run, notice, *number,
                   write.runs.now());
  write.transaction.on_commit([&runs = write.runs, id, kind = notice.kind] {
    runs.metrics().update_run(id, [&](RunNumbers& numbers) { numbers.notices[kind] += 1; });
  });
  return true;
}

}  // namespace gnomon
