#include "controller/supervisor/reports.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "controller/auth/http_error.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/checks.h"
#include "controller/supervisor/health.h"
#include "controller/supervisor/replay_results.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// A state is written down with everything but steps without effects, and with those after:
constexpr double kSaveSeconds = 1;
constexpr int64_t kUnsavedMax = 4096;  // events

// The first member in which a repeated report differs from the one on record, in words; empty when
// none does.
std::string step_difference(const StepNumbers& known, const StepNumbers& repeated) {
  auto differs = [](const char* member, const auto& before, const auto& after) {
    return fmt::format("{} was {} and now is {}", member, before, after);
  };
  if (!same_bits(known.loss, repeated.loss)) return differs("loss", known.loss, repeated.loss);
  // On record no norm and NaN are the same.
  constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
  const double before = known.grad_norm.value_or(kNone), now = repeated.grad_norm.value_or(kNone);
  if (!same_bits(before, now)) return differs("grad_norm", before, now);
  if (known.weights_hash != repeated.weights_hash)
    return differs("weights_hash", known.weights_hash, repeated.weights_hash);
  if (known.batch_hash != repeated.batch_hash)
    return differs("batch_hash", known.batch_hash, repeated.batch_hash);
  if (known.plan_version != repeated.plan_version)
    return differs("plan_version", known.plan_version, repeated.plan_version);
  return {};
}

std::string checkpoint_difference(const Checkpoint& known, const Checkpoint& repeated) {
  auto differs = [](const char* member, const auto& before, const auto& after) {
    return fmt::format("{} was {} and now is {}", member, before, after);
  };
  if (known.uri != repeated.uri) return differs("uri", known.uri, repeated.uri);
  if (known.manifest_hash != repeated.manifest_hash)
    return differs("manifest_hash", known.manifest_hash, repeated.manifest_hash);
  if (known.weights_hash != repeated.weights_hash)
    return differs("weights_hash", known.weights_hash, repeated.weights_hash);
  return {};
}

void check_step(WriteContext write, CachedRun& run, const StepReport& report) {
  Connection& connection = write.transaction.connection();
  if (!run.base_steps.contains(report.attempt)) {
    run.base_steps[report.attempt] = known_attempt(connection, run.id, report.attempt).base_step;
  }
  int64_t base_step = run.base_steps[report.attempt];
  if (report.step <= base_step) {
    throw value_refused(fmt::format("step is {}", report.step),
                        fmt::format("above {}, where attempt {} began", base_step, report.attempt));
  }
  require_step_of(run.registration, report.step, "step", 1);
  check_plan(connection, run, report.plan_version);
}

// Records a step and gives it to the core. Returns its row, or nothing where it is on record.
std::optional<StepRow> handle_step(WriteContext write, CachedRun& run, const StepReport& step,
                                   double time) {
  Connection& connection = write.transaction.connection();
  const std::pair<int64_t, int64_t> place{step.attempt, step.step};
  const bool last = place > run.newest_step;
  const decide::StepReported event = decide::step_event(step);
  // In a row NULL is no norm at all.
  const bool nan = event.grad_norm && std::isnan(*event.grad_norm);
  const auto seq = last && !nan ? std::optional<int64_t>(run.seq + 1) : std::nullopt;
  std::optional<StepRow> recorded(StepRow{step, run.id, time, seq});
  if (!ledger::insert_step(connection, *recorded)) return std::nullopt;
  run.totals.add(step);
  if (last) run.newest_step = place;
  if (!seq) {
    EventRow row{run.id, run.seq + 1, time, "step_reported", step.attempt, step.step};
    if (nan) row.body = decide::event_to_json(event);
    ledger::insert(connection, row);
  }
  write.runs.step(write.transaction, run, event, time);
  // Retention may delete the steps of a run that has ended, but not what the state knows of them.
  if (run.life != "live") write.runs.save_at_end(write.transaction, run);
  return recorded;
}

// A verifier reads what is named here, with its own rights.
void require_inside(const std::string& uri, const std::vector<std::string>& roots) {
  if (roots.empty() || uri.starts_with(kMemoryScheme)) return;
  const std::filesystem::path path(uri);
  const bool inside = path.is_absolute() && path == path.lexically_normal() &&
                      std::ranges::any_of(roots, [&](const std::string& root) {
                        const std::filesystem::path rest = path.lexically_relative(root);
                        return !rest.empty() && *rest.begin() != ".." && *rest.begin() != ".";
                      });
  if (!inside) {
    throw value_refused(
        fmt::format("uri is \"{}\"", uri),
        fmt::format("a path without \"..\" below one of: {}", fmt::join(roots, ", ")));
  }
}

}  // namespace

ReportAck report_steps(WriteContext write, int64_t id, const StepBatch& batch) {
  CachedRun& run = write.runs.load(write.transaction, id);
  Connection& connection = write.transaction.connection();
  double time = write.runs.now();
  std::vector<StepRow> fresh;
  fresh.reserve(batch.steps.size());
  std::vector<const StepReport*> with_health;
  for (const StepReport& report : batch.steps) {
    check_step(write, run, report);
    const bool has_ended = run.life == "stopped" || run.life == "failed";
    if (has_ended && std::pair(report.attempt, report.step) > run.newest_step &&
        report.attempt == ledger::newest_attempt(connection, id)) {
      continue_attempt(write, run, report);
    }
    if (std::optional<StepRow> recorded = handle_step(write, run, report, time)) {
      fresh.push_back(*std::move(recorded));
      if (report.device_health) with_health.push_back(&report);
      continue;
    }
    const std::optional<StepRow> known =
        ledger::find_step(connection, id, report.attempt, report.step);
    if (std::string conflict = step_difference(*known, report); !conflict.empty()) {
      std::string detail = fmt::format("attempt {} step {} is on record with other values: {}",
                                       report.attempt, report.step, conflict);
      throw HttpError(
          409, "Step already reported with other values", detail,
          "the values of the first report, or a new attempt; nothing of this batch was taken",
          AuditNote{id, "conflicting_step", detail});
    }
  }
  std::optional<std::pair<std::string, DeviceHealth>> newest_health;
  for (const StepReport* report : with_health) {
    newest_health = {record_health(write, run, *report), *report->device_health};
  }
  int64_t accepted = static_cast<int64_t>(fresh.size());
  if (!fresh.empty()) {
    show_layers(write, run, fresh.back().plan_version);
    if (run.unsaved >= kUnsavedMax || write.runs.steady_now() - run.saved_at >= kSaveSeconds) {
      write.runs.save_at_end(write.transaction, run);
    }
    if (!run.save_due) write.runs.show(write.transaction, run);
    write.transaction.on_commit(
        [&runs = write.runs, id, time, fresh = std::move(fresh), newest_health] {
          runs.metrics().update_run(id, [&](RunNumbers& numbers) {
            for (size_t i = 0; i + 1 < fresh.size(); ++i) count_step(numbers, fresh[i]);
            record_step(numbers, fresh.back(), time);
            if (newest_health) record_device(numbers, newest_health->first, newest_health->second);
          });
        });
  }
  return report_ack(write.transaction, run, accepted,
                    static_cast<int64_t>(batch.steps.size()) - accepted);
}

ReportAck report_checkpoint(WriteContext write, int64_t id, const CheckpointReport& checkpoint) {
  CachedRun& run = write.runs.load(write.transaction, id);
  Connection& connection = write.transaction.connection();
  known_attempt(connection, id, checkpoint.attempt);
  require_inside(checkpoint.uri, write.runs.options().checkpoint_roots);
  require_step_of(run.registration, checkpoint.step, "step", 0);
  check_plan(connection, run, checkpoint.plan_version);
  if (std::optional<CheckpointRow> known =
          ledger::find_checkpoint(connection, id, checkpoint.attempt, checkpoint.step)) {
    if (std::string conflict = checkpoint_difference(*known, checkpoint); !conflict.empty()) {
      std::string detail =
          fmt::format("the checkpoint of attempt {} step {} is on record with other values: {}",
                      checkpoint.attempt, checkpoint.step, conflict);
      throw HttpError(409, "Checkpoint already reported with other values", detail,
                      "the values of the first report, or a new attempt",
                      AuditNote{id, "conflicting_checkpoint", detail});
    }
    return report_ack(write.transaction, run, 0, 1);
  }
  ledger::insert(connection, CheckpointRow{checkpoint, id, write.runs.now()});
  write.runs.record_event(write.transaction, run,
                          decide::CheckpointCompleted{checkpoint.attempt, checkpoint.step,
                                                      checkpoint.uri, checkpoint.plan_version});
  return report_ack(write.transaction, run, 1, 0);
}

}  // namespace gnomon
