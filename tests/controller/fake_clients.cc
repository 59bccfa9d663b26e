#include "tests/controller/fake_clients.h"

#include <fmt/format.h>

#include "protocol/precision_plan.h"

namespace gnomon {

Fingerprint test_fingerprint() { return {"test CPU", "cpu", "none 1.0", "test", 1, 1}; }

RunRegistration test_registration(const std::string& name, const std::string& job_id) {
  RunRegistration registration;
  registration.name = name;
  registration.job_id = job_id;
  registration.fingerprint = test_fingerprint();
  PrecisionPlan plan = PrecisionPlan::fp8();
  plan.version = 1;
  registration.base_plan = plan.to_toml();
  registration.layers = 2;
  for (int layer = 0; layer < 2; ++layer) {
    registration.sites.push_back(fmt::format("model.layers.{}.mlp.up_proj", layer));
    registration.sites.push_back(fmt::format("model.layers.{}.mlp.down_proj", layer));
  }
  registration.sites.push_back("lm_head");
  registration.total_steps = 1000;
  registration.tokens_per_step = 64;
  registration.checkpoint_every = 5;
  return registration;
}

StepReport test_step(int64_t step, int64_t attempt) {
  StepReport report;
  report.attempt = attempt;
  report.step = step;
  report.plan_version = 1;
  report.loss = 4.0 - 0.001 * static_cast<double>(step);
  report.grad_norm = 1.0 / 3.0;
  report.learning_rate = 1e-3;
  report.tokens = 64;
  report.step_seconds = 0.25;
  report.weights_hash = fmt::format("{:016x}", step * 1000 + attempt);
  report.time = 1.0;
  return report;
}

CheckpointReport test_checkpoint(int64_t step, int64_t attempt) {
  return {attempt,
          step,
          fmt::format("/checkpoints/attempt{}/step{}", attempt, step),
          1,
          1000,
          fmt::format("{:032x}", step),
          fmt::format("{:016x}", step * 1000 + attempt),
          1.0};
}

void FakeTrainer::begin(const RunRegistration& registration) {
  run = from_json<RunRegistered>(client_->checked("POST", "/v1/runs", to_json(registration)).body)
            .run;
  client_->checked("POST", path("/attempts"), to_json(AttemptStart{1, 0, "start", 1, 1.0}));
  client_->checked("POST", path("/checkpoints"), to_json(test_checkpoint(0)));
}

void FakeTrainer::train(int64_t from, int64_t to, int64_t attempt) {
  for (int64_t step = from; step <= to; ++step) {
    post_steps({{test_step(step, attempt)}});
    if (step % 5 == 0) {
      client_->checked("POST", path("/checkpoints"), to_json(test_checkpoint(step, attempt)));
    }
  }
}

ReportAck FakeTrainer::post_steps(const StepBatch& batch) {
  return from_json<ReportAck>(client_->checked("POST", path("/steps"), to_json(batch)).body);
}

DirectiveList FakeTrainer::poll(int64_t after, const std::string& wait) {
  return from_json<DirectiveList>(
      client_
          ->checked("GET", path(fmt::format("/directives?after={}&wait={}", after, wait)), {},
                    std::chrono::seconds(60))
          .body);
}

Directive FakeTrainer::ack(int64_t number, const DirectiveAck& ack) {
  return from_json<Directive>(
      client_->checked("POST", path(fmt::format("/directives/{}/ack", number)), to_json(ack)).body);
}

std::optional<Lease> FakeVerifier::lease(const std::string& wait) {
  LeaseRequest request{name, test_fingerprint()};
  request.labels = labels;
  HttpResponse response = client_->checked("POST", "/v1/leases?wait=" + wait, to_json(request),
                                           std::chrono::seconds(60));
  return response.status == 204 ? std::nullopt
                                : std::optional<Lease>(from_json<Lease>(response.body));
}

ReplayResult FakeVerifier::result(const Lease& lease, double gap) const {
  ReplayResult result;
  result.token = lease.token;
  result.fingerprint = test_fingerprint();
  const ReplayTask& task = lease.task;
  for (int64_t step = task.start_step + 1; step <= task.start_step + task.steps; ++step) {
    StepReport own = test_step(step, task.attempt);
    bool same = task.arm == "same";
    result.steps.push_back({step, same ? own.loss : own.loss - gap, own.grad_norm,
                            same ? own.weights_hash : fmt::format("{:016x}", ~step)});
  }
  result.start_loss_bf16 = 4.0;
  result.start_loss_plan = 4.004;
  // Each window has its own, as in a run that learns: who gives one answer twice is not believed.
  const double end = 3.9 - 1e-9 * static_cast<double>(task.start_step);
  result.run_end_loss_bf16 = end;
  result.replay_end_loss_bf16 = task.arm == "same" ? end : end - gap;
  result.heldout_tokens = 1024;
  result.replay_seconds = 1.5;
  result.eval_seconds = 0.5;
  return result;
}

void FakeVerifier::complete(const Lease& lease, double gap) {
  client_->checked("POST", fmt::format("/v1/leases/{}/complete", lease.lease),
                   to_json(result(lease, gap)));
}

void FakeVerifier::complete_twice(const Lease& first, double gap) {
  complete(first, gap);
  const std::optional<Lease> again = lease();
  if (!again || again->task.arm != "bf16" || again->task.start_step != first.task.start_step ||
      again->task.run != first.task.run)
    throw Error("no second source is asked to confirm the window");
  complete(*again, gap);
}

std::string test_policy() {
  return "[window]\nevery = 5\nsteps = 5\n[verifier]\nlease_ttl_seconds = 30.0\nattempts_max = 2\n"
         "[instrument]\nevery = 0\n[triage]\npairs = 0\n[attribution]\nscores = false\n";
}

Directive provoke_directive(FakeTrainer& trainer, FakeVerifier& verifier) {
  for (int replay = 0; replay < 100; ++replay) {
    DirectiveList list = trainer.poll(0);
    if (!list.directives.empty()) {
      return list.directives.front();
    }
    std::optional<Lease> lease = verifier.lease();
    if (!lease) {
      break;
    }
    verifier.complete(*lease, 0.2);
  }
  throw Error("the daemon issued no directive");
}

}  // namespace gnomon
