#include "trainer/controller_absence.h"

#include <fmt/format.h>

#include <chrono>

#include "base/progress.h"

namespace gnomon {
namespace {

// Plan version of steps that ran in BF16 because the controller was away (controller.on_loss =
// "bf16").
constexpr int64_t kPlanVersionWithoutController = -1;

}  // namespace

ControllerAbsence::ControllerAbsence(const TrainerConfig& config, Engine& engine,
                                     RunDirectory& directory, ControllerLink& link,
                                     Shutdown& shutdown, spdlog::logger& log)
    : config_(config),
      engine_(engine),
      directory_(directory),
      link_(link),
      shutdown_(shutdown),
      log_(log) {}

// The policy's are kept: a run that is started again while the controller is away obeys them.
ControllerAbsence::Settings ControllerAbsence::settings() {
  RunState& known = directory_.state();
  const std::optional<RunRegistered> policy = link_.reporter()->registered();
  if (policy &&
      (policy->on_loss != known.on_loss || policy->grace_seconds != known.grace_seconds)) {
    known.on_loss = policy->on_loss;
    known.grace_seconds = policy->grace_seconds;
    directory_.save(engine_.step());
  }
  Settings settings{config_.on_loss.value_or(OnLoss::kContinue),
                    config_.grace_seconds.value_or(60)};
  if (known.on_loss.empty()) return settings;
  if (!config_.on_loss) settings.then = on_loss_from_name(known.on_loss).value_or(settings.then);
  if (!config_.grace_seconds) settings.grace_seconds = known.grace_seconds;
  return settings;
}

void ControllerAbsence::check(int64_t attempt) {
  if (link_.reporter() == nullptr) return;
  constexpr std::chrono::milliseconds kLook(50);
  const Settings absence = settings();
  const Contact& contact = link_.contact();
  const bool lost = contact.away_seconds() >= absence.grace_seconds && contact.away_seconds() > 0;
  if (absence.then == OnLoss::kPause && lost) {
    log_.warn("no controller for {} ({}): pausing at step {} (controller.on_loss = \"pause\")",
              format_duration(contact.away_seconds()), contact.why(), engine_.step());
    while (contact.away_seconds() > 0 && !shutdown_.wait_for(kLook)) {
    }
    if (!shutdown_.requested()) log_.info("the controller is back: going on");
  }
  if (absence.then == OnLoss::kBf16 && lost && !plan_before_) {
    log_.warn("no controller for {} ({}): BF16 from step {} on (controller.on_loss = \"bf16\")",
              format_duration(contact.away_seconds()), contact.why(), engine_.step() + 1);
    plan_before_ = engine_.plan();
    PrecisionPlan bf16 = PrecisionPlan::bf16();
    bf16.version = kPlanVersionWithoutController;
    try {
      engine_.set_plan(bf16);
      report_plan(attempt);
    } catch (const ConfigError& error) {
      log_.error("no BF16, the run goes on in plan {}: {}", plan_before_->version, error.what());
    }
  } else if (plan_before_ && contact.away_seconds() == 0) {
    log_.info("the controller is back: plan {} again from step {} on", plan_before_->version,
              engine_.step() + 1);
    engine_.set_plan(*plan_before_);
    plan_before_.reset();
  }
}

void ControllerAbsence::report_plan(int64_t attempt) {
  TrainerNotice notice;
  notice.attempt = attempt;
  notice.step = engine_.step();
  notice.kind = "plan_without_controller";
  notice.text = fmt::format(
      "no controller: every GEMM in BF16 from step {} on (controller.on_loss = \"bf16\")",
      engine_.step() + 1);
  notice.plan = engine_.plan().to_toml();
  notice.plan_version = engine_.plan().version;
  link_.notice(notice);
}

}  // namespace gnomon
