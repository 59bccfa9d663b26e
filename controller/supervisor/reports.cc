// What trainers report while they train: steps and checkpoints.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "controller/refusal.h"
#include "controller/replay_join.h"
#include "controller/supervisor/run_cache.h"
#include "controller/trainer_fence.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// A state is written down with everything but steps without effects, and with those after:
constexpr double kSaveSeconds = 1;
constexpr int64_t kUnsavedMax = 4096;  // events
// A run may be prolonged beyond the steps that its trainer said it would take, by so many times.
constexpr int64_t kProlongedMax = 10;
constexpr int64_t kAlwaysPossible = 1'000'000;  // steps

// The first member in which a repeated report differs from the one on record, in words; empty when
// none does.
std::string difference(const StepNumbers& known, const StepNumbers& repeated) {
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

std::string difference(const Checkpoint& known, const Checkpoint& repeated) {
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

}  // namespace

void require_step_of(const RunRegistration& run, int64_t step, std::string_view member,
                     int64_t least) {
  require_step(step, member, least);
  const int64_t most = std::max(kProlongedMax * run.total_steps, kAlwaysPossible);
  if (run.total_steps == 0 || step <= most) return;
  throw value_refused(
      fmt::format("{} is {}", member, step),
      fmt::format("at most {} in a run of {} total_steps; a run that is prolonged registers again",
                  most, run.total_steps));
}

void RunCache::check_plan(Connection& connection, Run& run, int64_t plan_version) {
  if (plan_version == 0 || run.known_plans.contains(plan_version)) return;
  const int64_t newest =
      std::max(run.registration.newest_plan_version, run.state.next_plan_version - 1);
  const bool issued = plan_version > 0 && plan_version <= newest;
  if (!issued && !ledger::find_plan(connection, run.id, plan_version)) {
    throw Refusal(
        409, std::string(kUnknownPlan), fmt::format("plan_version is {}", plan_version),
        fmt::format("0 to {}, or that of a plan of the notice plan_without_controller; a "
                    "trainer that knows newer ones says so in newest_plan_version when it "
                    "registers",
                    newest));
  }
  run.known_plans.insert(plan_version);
}

void RunCache::check_step(LedgerTransaction& transaction, Run& run, const StepReport& report) {
  Connection& connection = transaction.connection();
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

ReportAck RunCache::report_steps(LedgerTransaction& transaction, int64_t id,
                                 const StepBatch& batch) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  double time = now();
  std::vector<StepReport> fresh;
  for (const StepReport& report : batch.steps) {
    check_step(transaction, run, report);
    const bool has_ended = run.life == "stopped" || run.life == "failed";
    if (has_ended && std::pair(report.attempt, report.step) > run.newest_step &&
        report.attempt == ledger::newest_attempt(connection, id)) {
      go_on(transaction, run, report);
    }
    if (hear_step(transaction, run, report, time)) {
      fresh.push_back(report);
      continue;
    }
    const std::optional<StepRow> known =
        ledger::find_step(connection, id, report.attempt, report.step);
    if (std::string conflict = difference(*known, report); !conflict.empty()) {
      std::string detail = fmt::format("attempt {} step {} is on record with other values: {}",
                                       report.attempt, report.step, conflict);
      throw Refusal(
          409, "Step already reported with other values", detail,
          "the values of the first report, or a new attempt; nothing of this batch was taken",
          AuditNote{id, "conflicting_step", detail});
    }
  }
  std::optional<std::pair<std::string, DeviceHealth>> newest_health;
  for (const StepReport& report : fresh) {
    if (report.device_health) {
      newest_health = {take_health(transaction, run, report), *report.device_health};
    }
  }
  int64_t accepted = static_cast<int64_t>(fresh.size());
  if (!fresh.empty()) {
    show_layers(transaction, run, fresh.back().plan_version);
    if (run.unsaved >= kUnsavedMax || steady_now() - run.saved_at >= kSaveSeconds) {
      save_at_end(transaction, run);
    }
    if (!run.save_due) show(transaction, run);
    transaction.on_commit([this, id, time, fresh = std::move(fresh), newest_health] {
      metrics_.update_run(id, [&](RunNumbers& numbers) {
        for (size_t i = 0; i + 1 < fresh.size(); ++i) count_step(numbers, fresh[i]);
        record_step(numbers, fresh.back(), time);
        if (newest_health) record_device(numbers, newest_health->first, newest_health->second);
      });
    });
  }
  return ack(transaction, run, accepted, static_cast<int64_t>(batch.steps.size()) - accepted);
}

namespace {

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

ReportAck RunCache::report_checkpoint(LedgerTransaction& transaction, int64_t id,
                                      const CheckpointReport& checkpoint) {
  Run& run = load(transaction, id);
  Connection& connection = transaction.connection();
  known_attempt(connection, id, checkpoint.attempt);
  require_inside(checkpoint.uri, options_.checkpoint_roots);
  require_step_of(run.registration, checkpoint.step, "step", 0);
  check_plan(connection, run, checkpoint.plan_version);
  if (std::optional<CheckpointRow> known =
          ledger::find_checkpoint(connection, id, checkpoint.attempt, checkpoint.step)) {
    if (std::string conflict = difference(*known, checkpoint); !conflict.empty()) {
      std::string detail =
          fmt::format("the checkpoint of attempt {} step {} is on record with other values: {}",
                      checkpoint.attempt, checkpoint.step, conflict);
      throw Refusal(409, "Checkpoint already reported with other values", detail,
                    "the values of the first report, or a new attempt",
                    AuditNote{id, "conflicting_checkpoint", detail});
    }
    return ack(transaction, run, 0, 1);
  }
  ledger::insert(connection, CheckpointRow{checkpoint, id, now()});
  hear(transaction, run,
       decide::CheckpointCompleted{checkpoint.attempt, checkpoint.step, checkpoint.uri,
                                   checkpoint.plan_version});
  return ack(transaction, run, 1, 0);
}

ReportAck RunCache::ack(LedgerTransaction& transaction, Run& run, int64_t accepted,
                        int64_t repeated) {
  if (!run.ack) {
    Connection& connection = transaction.connection();
    run.ack = {0, 0, ledger::protected_checkpoints(connection, run.id),
               ledger::last_directive(connection, run.id)};
  }
  ReportAck answer = *run.ack;
  answer.accepted = accepted;
  answer.repeated = repeated;
  return answer;
}

}  // namespace gnomon
