// Puts into a fresh daemon's ledger what its lists can show: runs in every state, windows, an alarm
// with its decisions and directive, leases in every state, notices, overrides, statistics, health.
#include <fmt/format.h>

#include "tests/controller/fake_clients.h"

namespace gnomon {
namespace {

void report_health_and_statistics(FakeTrainer& trainer, int64_t step) {
  StepReport report = test_step(step);
  DeviceHealth health;
  health.device = "0000:01:00.0";
  health.name = "test GPU";
  health.time = 10;
  health.power_watts = 640.5;
  health.ecc_uncorrected = 1;
  health.throttle_reasons = std::vector<ThrottleReason>{"idle"};
  report.device_health = health;
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.grad_norm = std::numeric_limits<double>::infinity();
  report.cast_saturated = 1e-6;
  report.cast_peak = std::numeric_limits<double>::infinity();
  report.state_changed = true;
  trainer.post_steps({{report}});
  StatisticsReport statistics;
  statistics.step = step;
  StatisticsRow row;
  row.site = "lm_head";
  row.tensor = "input";
  row.elements = 64;
  row.numbers[5] = 3.5;
  statistics.rows.push_back(row);
  row.gemm = "fprop";
  row.recipe = "current";
  row.in_use = true;
  statistics.rows.push_back(row);
  trainer.client().checked("POST", trainer.path("/statistics"), to_json(statistics));
}

void seed(const std::string& url) {
  FakeTrainer trainer(url);
  FakeVerifier verifier(url);
  RunRegistration registration = test_registration("alarmed", "1");
  registration.faults.push_back({"stale_amax", "lm_head", 5, 0, "history stops"});
  trainer.begin(registration);
  trainer.train(1, 20);
  const Directive directive = provoke_directive(trainer, verifier);
  trainer.ack(directive.number, {"acknowledged", 1, 20, "", 0});
  trainer.client().checked(
      "POST", trainer.path("/notices"),
      to_json(TrainerNotice{1, 20, "checkpoint_failed", "no space left", "", 0, 5}));
  trainer.client().checked("POST", trainer.path("/overrides"),
                           to_json(OverrideRequest{"silence", "", "", "ada", "looking", 600}));

  FakeTrainer healthy(url);
  healthy.begin(test_registration("healthy", "1"));
  healthy.train(1, 10);
  report_health_and_statistics(healthy, 11);
  const Lease failed = verifier.lease().value();
  verifier.client().checked("POST", fmt::format("/v1/leases/{}/fail", failed.lease),
                            to_json(LeaseFailure{failed.token, "out of memory", true}));
  if (const auto lease = verifier.lease()) verifier.complete(*lease, 0.001);
  verifier.lease();  // and one that is held

  FakeTrainer ended(url);
  ended.begin(test_registration("ended", "1"));
  ended.train(1, 3);
  ended.client().checked("POST", ended.path("/finished"),
                         to_json(RunFinished{"completed", 3, 3.5, 12.5, 0}));
}

}  // namespace
}  // namespace gnomon

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: openapi_seed URL\n");
    return 2;
  }
  try {
    gnomon::seed(argv[1]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "openapi_seed: {}\n", error.what());
    return 1;
  }
  return 0;
}
