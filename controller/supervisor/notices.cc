// What a trainer tells people in words, and gnomond of a run.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "controller/refusal.h"
#include "controller/supervisor/run_cache.h"
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

ReportAck RunCache::report_notice(LedgerTransaction& transaction, int64_t id,
                                  const TrainerNotice& notice) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  check_notice(notice, run.registration);
  if (!add_notice(transaction, run, notice)) {
    return ack(transaction, run, 0, 1);
  }
  if (!notice.plan.empty()) {
    double time = now();
    ledger::insert_plan(connection, id, notice.plan_version, notice.plan, time);
    if (ledger::find_plan(connection, id, notice.plan_version) != notice.plan) {
      ledger::insert_audit(connection, time, id, "conflicting_plan",
                           fmt::format("plan {} of {} is on record with another text than the one "
                                       "the trainer took without the controller",
                                       notice.plan_version, run.label));
    }
  }
  return ack(transaction, run, 1, 0);
}

void RunCache::note(LedgerTransaction& transaction, int64_t id, std::string_view kind,
                    const std::string& text) {
  const Run& run = load(transaction, id);
  TrainerNotice notice;
  notice.attempt = run.newest_step.first;
  notice.step = run.newest_step.second;
  notice.kind = TrainerNoticeKind::on_record(kind);
  notice.text = text;
  notice.time = now();
  add_notice(transaction, run, notice);
}

void RunCache::tell_set_aside(LedgerTransaction& transaction, const SetAsideRuns::Entry& entry) {
  if (runs_.contains(entry.run)) {  // it is in memory: what was written down is put right
    save_at_end(transaction, load(transaction, entry.run));
    transaction.on_commit([this, id = entry.run] { set_aside_.forget(id); });
    return;
  }
  transaction.on_commit([this, id = entry.run] {
    deadlines_.set(id, std::numeric_limits<double>::infinity());
    bells_.work.forget_run(id);
  });
  Connection& connection = transaction.connection();
  const std::optional<RunRow> row = ledger::load_run(connection, entry.run);
  if (!row) return;
  Run run;
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
  notice.time = now();
  {
    Query known = connection.query("SELECT 1 FROM notices WHERE run = ? AND kind = ? AND text = ?",
                                   run.id, notice.kind, notice.text);
    if (known.next()) return;  // said by the daemon before
  }
  add_notice(transaction, run, notice);
}

bool RunCache::add_notice(LedgerTransaction& transaction, const Run& run,
                          const TrainerNotice& notice) {
  Connection& connection = transaction.connection();
  const int64_t id = run.id;
  std::optional<int64_t> number = ledger::insert_notice(connection, id, notice, now());
  if (!number) return false;
  Query row = connection.query("SELECT * FROM notices WHERE run = ? AND notice = ?", id, *number);
  stream(transaction, id, "notice", first_row_as_json(row));
  tell_of_notice(transaction, run, notice, *number);
  transaction.on_commit([this, id, kind = notice.kind] {
    metrics_.update_run(id, [&](RunNumbers& numbers) { numbers.notices[kind] += 1; });
  });
  return true;
}

}  // namespace gnomon
