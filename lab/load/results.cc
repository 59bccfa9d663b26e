#include "lab/load/results.h"

#include <fmt/format.h>

#include "lab/load/reports.h"

namespace gnomon::bench {

CheckpointReport checkpoint_at(int64_t step) {
  CheckpointReport report;
  report.step = step;
  report.uri = fmt::format("/checkpoints/step{}", step);
  report.plan_version = 1;
  report.bytes = 1;
  report.manifest_hash = fmt::format("{:032x}", step);
  report.weights_hash = fmt::format("{:016x}", step);
  return report;
}

ReplayResult result_of(const Lease& lease, double gap) {
  const ReplayTask& task = lease.task;
  const bool same = task.arm == "same";
  ReplayResult result;
  result.token = lease.token;
  result.fingerprint = bench_fingerprint();
  for (int64_t step = task.start_step + 1; step <= task.start_step + task.steps; ++step) {
    const StepReport own = bench_step(step);
    result.steps.push_back({step, same ? own.loss : own.loss - gap, own.grad_norm,
                            same ? own.weights_hash : "0", own.batch_hash});
  }
  result.start_loss_bf16 = result.start_loss_plan = 4.0;
  result.run_end_loss_bf16 = 3.9;
  result.replay_end_loss_bf16 = same ? 3.9 : 3.9 - gap;
  result.heldout_tokens = 1024;
  result.replay_seconds = 1;
  return result;
}

}  // namespace gnomon::bench
