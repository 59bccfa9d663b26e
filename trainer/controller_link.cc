#include "trainer/controller_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "protocol/json.h"
#include "trainer/incarnation.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

RunRegistration registration_of(const TrainerConfig& config, const Engine& engine,
                                const std::filesystem::path& checkpoints) {
  RunRegistration run;
  run.name = config.name;
  run.job_id = config.job_id;
  run.fingerprint = engine.fingerprint();
  run.base_plan = config.plan.to_toml();
  run.sites = config.engine.model.sites();
  run.layers = config.engine.model.layers;
  run.parameters = config.engine.model.parameters();
  run.total_steps = config.steps;
  run.tokens_per_step = config.engine.batch.tokens_per_step();
  run.checkpoint_every = config.checkpoint_every;
  run.seed = config.engine.seed;
  run.checkpoint_root = checkpoints.string();
  run.framework = kOwnFramework;
  run.checkpoint_format = kOwnFormat;
  run.trainer_replays = config.verification.by_trainer;
  run.trainer_confirms = config.verification.confirms;
  for (const Fault& fault : config.engine.faults) {
    run.faults.push_back({fault_kind_name(fault.kind), fault.site, fault.start_step, fault.end_step,
                          fault.describe()});
  }
  return run;
}

}  // namespace

ControllerLink::ControllerLink(const TrainerConfig& config, const Engine& engine,
                               const std::filesystem::path& checkpoints, Standing standing,
                               bool over, Shutdown& shutdown, spdlog::logger& log)
    : config_(config), log_(log) {
  if (config_.controller.url.empty()) return;
  spool_.emplace(spool_of(config_.dir), config_.spool_bytes_max);
  for (const std::string& note : spool_->opening_notes()) log_.warn("{}", note);
  const FullSpool full = config_.on_loss.value_or(OnLoss::kContinue) == OnLoss::kContinue
                             ? FullSpool::kDropSteps
                             : FullSpool::kWait;
  outbox_.emplace(*spool_, full, shutdown, log_);
  ReporterOptions reporter;
  reporter.controller = config_.controller;
  reporter.registration = registration_of(config_, engine, checkpoints);
  reporter.standing = std::move(standing);
  reporter.incarnation = process_incarnation();
  // Whatever waits for room or for a person ends.
  reporter.on_replaced = [&shutdown] { shutdown.request(); };
  reporter.deleted = [](const CheckpointReport& report) {
    return !std::filesystem::exists(report.uri);
  };
  reporter_ = std::make_unique<Reporter>(std::move(reporter), *spool_, contact_, log_);
  DirectiveOptions directives;
  directives.controller = config_.controller;
  // A run that is over has nobody who would apply them.
  if (!over) {
    inbox_ = std::make_unique<DirectiveInbox>(std::move(directives), *reporter_, *spool_, contact_,
                                              log_);
  }
}

void ControllerLink::report(const StepReport& step) {
  if (outbox_) outbox_->step(step);
}

void ControllerLink::report(const std::string& target, const std::string& body) {
  if (outbox_) outbox_->record(target, body);
}

// In parts that the controller takes and the spool has room for. Nothing rests on them, so they
// never make the run wait.
void ControllerLink::report_statistics(const StepReport& step,
                                       const std::vector<StatisticsRow>& rows) {
  if (!outbox_) return;
  constexpr size_t kRowsMax = 256;
  for (size_t begin = 0; begin < rows.size(); begin += kRowsMax) {
    StatisticsReport part;
    part.attempt = step.attempt;
    part.step = step.step;
    part.plan_version = step.plan_version;
    part.time = step.time;
    const size_t end = std::min(begin + kRowsMax, rows.size());
    part.rows.assign(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                     rows.begin() + static_cast<std::ptrdiff_t>(end));
    if (outbox_->offer("statistics", to_json(part))) continue;
    if (statistics_dropped_++ == 0) {
      log_.warn("step {}: no room in the spool for tensor statistics; what finds none is dropped",
                step.step);
    }
  }
}

void ControllerLink::notice(TrainerNotice notice) {
  if (outbox_) outbox_->notice(std::move(notice));
}

void ControllerLink::knows(Standing standing) {
  if (reporter_) reporter_->knows(std::move(standing));
}

std::vector<CheckpointReport> ControllerLink::unsent_checkpoints() const {
  std::vector<CheckpointReport> unsent;
  if (!outbox_) return unsent;
  for (const std::string& body : outbox_->pending("checkpoints")) {
    unsent.push_back(from_json<CheckpointReport>(body));
  }
  return unsent;
}

void ControllerLink::end_if_replaced(int64_t step) const {
  if (!reporter_) return;
  const std::optional<std::string> why = reporter_->replaced();
  if (!why) return;
  throw Error(fmt::format(
      "another trainer has taken over {}/{} at the controller; this one ends at step {}: {}",
      config_.name, config_.job_id, step, *why));
}

void ControllerLink::settle() {
  if (outbox_) outbox_->settle();
}

void ControllerLink::flush(double seconds) {
  if (!spool_) return;
  const auto deadline = Clock::now() + std::chrono::duration<double>(seconds);
  constexpr std::chrono::milliseconds kStep(50);
  while (Clock::now() < deadline && !reporter_->replaced()) {
    if (!outbox_->store_kept()) {
      std::this_thread::sleep_for(kStep);
    } else if (spool_->wait_until_empty(kStep)) {
      break;
    }
  }
  log_unsent();
}

void ControllerLink::log_unsent() {
  if (!outbox_->store_kept()) {
    log_.error(
        "there was no room for the last reports; the next start sends the attempts and the last "
        "checkpoint again");
  }
  if (!spool_->empty()) {
    spool_->sync();
    log_.warn("{} reports are not delivered yet; start the trainer again on {} to send them",
              spool_->records(), config_.dir.string());
  }
  if (outbox_->steps_dropped() > 0)
    log_.error("{} step reports were dropped (see above)", outbox_->steps_dropped());
  if (reporter_->refused() > 0) {
    log_.error("the controller refused {} reports (see above); they are in {}",
               reporter_->refused(), (spool_->directory() / "refused.jsonl").string());
  }
}

}  // namespace gnomon
