// What the run does while its controller is away: its file, or else its policy, says whether it
// goes on, goes on in BF16 or waits.
#pragma once

#include <spdlog/logger.h>

#include <optional>

#include "protocol/precision_plan.h"
#include "trainer/config.h"
#include "trainer/controller_link.h"
#include "trainer/engine/engine.h"
#include "trainer/run_directory.h"
#include "trainer/shutdown.h"

namespace gnomon {

class ControllerAbsence {
 public:
  // The references must outlive it.
  ControllerAbsence(const TrainerConfig& config, Engine& engine, RunDirectory& directory,
                    ControllerLink& link, Shutdown& shutdown, spdlog::logger& log);

  // At a step boundary of this attempt. Waits under "pause", until the controller is back or a
  // shutdown is requested; takes the engine to BF16 and back under "bf16".
  void check(int64_t attempt);
  // A directive has set the engine's plan: no other one comes back with the controller.
  void forget_plan() { plan_before_.reset(); }

 private:
  struct Settings {
    OnLoss then = OnLoss::kContinue;
    double grace_seconds = 0;
  };
  Settings settings();
  void report_plan(int64_t attempt);

  const TrainerConfig& config_;
  Engine& engine_;
  RunDirectory& directory_;
  ControllerLink& link_;
  Shutdown& shutdown_;
  spdlog::logger& log_;
  std::optional<PrecisionPlan> plan_before_;  // set while on_loss = "bf16" is acting
};

}  // namespace gnomon
