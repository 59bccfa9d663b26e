// The members of every message, listed once for reading and writing. `required` members must be in
// a message that is read; `optional` ones keep their default when absent.
#pragma once

#include <type_traits>
#include <vector>

#include "protocol/messages.h"

// Every struct of messages.h, for what is done with each: X(Message).
#define GNOMON_EACH_MESSAGE(X) \
  X(Fingerprint)               \
  X(InjectedFault)             \
  X(RunRegistration)           \
  X(RunRegistered)             \
  X(AttemptStart)              \
  X(DeviceHealth)              \
  X(StepReport)                \
  X(StepBatch)                 \
  X(ReportAck)                 \
  X(CheckpointReport)          \
  X(TrainerNotice)             \
  X(RunFinished)               \
  X(Directive)                 \
  X(DirectiveList)             \
  X(DirectiveAck)              \
  X(StatisticsRow)             \
  X(StatisticsReport)          \
  X(OverrideRequest)           \
  X(OverrideAccepted)          \
  X(EndRequest)                \
  X(LeaseRequest)              \
  X(ReplayTask)                \
  X(Lease)                     \
  X(LeaseHeartbeat)            \
  X(ReplayStep)                \
  X(SiteScoreRow)              \
  X(ReplayResult)              \
  X(LeaseFailure)              \
  X(Problem)

namespace gnomon {

// For visitors, which treat lists apart.
template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <class V>
void visit_members(V& v, Fingerprint& m) {
  v.required("device", m.device);
  v.required("backend", m.backend);
  v.required("libraries", m.libraries);
  v.required("build", m.build);
  v.required("world_size", m.world_size);
  v.required("threads", m.threads);
}

template <class V>
void visit_members(V& v, InjectedFault& m) {
  v.required("kind", m.kind);
  v.optional("site", m.site);
  v.required("start_step", m.start_step);
  v.optional("end_step", m.end_step);
  v.optional("description", m.description);
}

template <class V>
void visit_members(V& v, RunRegistration& m) {
  v.required("name", m.name);
  v.required("job_id", m.job_id);
  v.required("fingerprint", m.fingerprint);
  v.required("base_plan", m.base_plan);
  v.required("sites", m.sites);
  v.required("layers", m.layers);
  v.optional("parameters", m.parameters);
  v.optional("total_steps", m.total_steps);
  v.optional("tokens_per_step", m.tokens_per_step);
  v.required("checkpoint_every", m.checkpoint_every);
  v.optional("seed", m.seed);
  v.optional("checkpoint_root", m.checkpoint_root);
  v.optional("faults", m.faults);
  v.optional("last_directive", m.last_directive);
  v.optional("newest_plan_version", m.newest_plan_version);
  v.optional("trainer_replays", m.trainer_replays);
  v.optional("trainer_confirms", m.trainer_confirms);
}

template <class V>
void visit_members(V& v, RunRegistered& m) {
  v.required("run", m.run);
  v.required("mode", m.mode);
  v.optional("on_loss", m.on_loss);
  v.optional("grace_seconds", m.grace_seconds);
}

template <class V>
void visit_members(V& v, AttemptStart& m) {
  v.required("attempt", m.attempt);
  v.required("base_step", m.base_step);
  v.required("cause", m.cause);
  v.required("plan_version", m.plan_version);
  v.optional("fingerprint", m.fingerprint);
  v.optional("time", m.time);
  v.optional("host", m.host);
}

template <class V>
void visit_members(V& v, TrainerNotice& m) {
  v.required("attempt", m.attempt);
  v.required("step", m.step);
  v.required("kind", m.kind);
  v.required("text", m.text);
  v.optional("plan", m.plan);
  v.optional("plan_version", m.plan_version);
  v.optional("time", m.time);
}

template <class V>
void visit_members(V& v, StatisticsRow& m) {
  v.required("site", m.site);
  v.required("tensor", m.tensor);
  v.optional("gemm", m.gemm);
  v.optional("recipe", m.recipe);
  v.optional("in_use", m.in_use);
  v.required("elements", m.elements);
  for (size_t i = 0; i < m.numbers.size(); ++i) v.optional(kStatisticsNames[i], m.numbers[i]);
  v.optional("histogram_lowest", m.histogram_lowest);
  v.optional("histogram_below", m.histogram_below);
  v.optional("histogram", m.histogram);
}

template <class V>
void visit_members(V& v, StatisticsReport& m) {
  v.required("attempt", m.attempt);
  v.required("step", m.step);
  v.optional("plan_version", m.plan_version);
  v.required("rows", m.rows);
  v.optional("time", m.time);
}

template <class V>
void visit_members(V& v, OverrideRequest& m) {
  v.required("kind", m.kind);
  v.optional("plan", m.plan);
  v.optional("mode", m.mode);
  v.required("owner", m.owner);
  v.required("reason", m.reason);
  v.optional("expires_seconds", m.expires_seconds);
}

template <class V>
void visit_members(V& v, OverrideAccepted& m) {
  v.required("decision", m.decision);
  v.optional("directive", m.directive);
  v.optional("expires_at", m.expires_at);
}

template <class V>
void visit_members(V& v, EndRequest& m) {
  v.required("owner", m.owner);
  v.required("reason", m.reason);
}

template <class V>
void visit_members(V& v, DeviceHealth& m) {
  v.required("device", m.device);
  v.optional("name", m.name);
  v.required("time", m.time);
  v.optional("error", m.error);
  v.optional("sm_clock_mhz", m.sm_clock_mhz);
  v.optional("memory_clock_mhz", m.memory_clock_mhz);
  v.optional("power_watts", m.power_watts);
  v.optional("power_limit_watts", m.power_limit_watts);
  v.optional("temperature_celsius", m.temperature_celsius);
  v.optional("memory_used_bytes", m.memory_used_bytes);
  v.optional("memory_total_bytes", m.memory_total_bytes);
  v.optional("utilization_percent", m.utilization_percent);
  v.optional("ecc_corrected", m.ecc_corrected);
  v.optional("ecc_uncorrected", m.ecc_uncorrected);
  v.optional("throttle_reasons", m.throttle_reasons);
  v.optional("remapped_rows_pending", m.remapped_rows_pending);
  v.optional("remapped_rows_failure", m.remapped_rows_failure);
}

template <class V>
void visit_members(V& v, StepReport& m) {
  v.required("attempt", m.attempt);
  v.required("step", m.step);
  v.required("plan_version", m.plan_version);
  v.required("loss", m.loss);
  v.required("grad_norm", m.grad_norm);
  v.optional("learning_rate", m.learning_rate);
  v.optional("tokens", m.tokens);
  v.optional("step_seconds", m.step_seconds);
  v.optional("weights_hash", m.weights_hash);
  v.optional("time", m.time);
  v.optional("batch_hash", m.batch_hash);
  v.optional("device_health", m.device_health);
}

template <class V>
void visit_members(V& v, StepBatch& m) {
  v.required("steps", m.steps);
}

template <class V>
void visit_members(V& v, ReportAck& m) {
  v.required("accepted", m.accepted);
  v.required("repeated", m.repeated);
  v.required("protected_checkpoints", m.protected_checkpoints);
  v.optional("last_directive", m.last_directive);
}

template <class V>
void visit_members(V& v, CheckpointReport& m) {
  v.required("attempt", m.attempt);
  v.required("step", m.step);
  v.required("uri", m.uri);
  v.required("plan_version", m.plan_version);
  v.optional("bytes", m.bytes);
  v.optional("manifest_hash", m.manifest_hash);
  v.optional("weights_hash", m.weights_hash);
  v.optional("time", m.time);
}

template <class V>
void visit_members(V& v, RunFinished& m) {
  v.required("outcome", m.outcome);
  v.required("step", m.step);
  v.optional("final_loss", m.final_loss);
  v.optional("train_seconds", m.train_seconds);
  v.optional("time", m.time);
}

template <class V>
void visit_members(V& v, Directive& m) {
  v.required("number", m.number);
  v.required("kind", m.kind);
  v.optional("plan", m.plan);
  v.optional("plan_version", m.plan_version);
  v.optional("to_step", m.to_step);
  v.optional("checkpoint_uri", m.checkpoint_uri);
  v.optional("reason", m.reason);
  v.optional("state", m.state);
}

template <class V>
void visit_members(V& v, DirectiveList& m) {
  v.required("directives", m.directives);
}

template <class V>
void visit_members(V& v, DirectiveAck& m) {
  v.required("state", m.state);
  v.optional("attempt", m.attempt);
  v.optional("step", m.step);
  v.optional("reason", m.reason);
  v.optional("time", m.time);
}

template <class V>
void visit_members(V& v, LeaseRequest& m) {
  v.required("verifier", m.verifier);
  v.required("fingerprint", m.fingerprint);
  v.optional("run", m.run);
  v.optional("on_trainer", m.on_trainer);
  v.optional("labels", m.labels);
}

template <class V>
void visit_members(V& v, ReplayTask& m) {
  v.required("run", m.run);
  v.required("replay", m.replay);
  v.required("window", m.window);
  v.required("attempt", m.attempt);
  v.required("arm", m.arm);
  v.optional("plan", m.plan);
  v.optional("purpose", m.purpose);
  v.required("checkpoint_uri", m.checkpoint_uri);
  v.required("start_step", m.start_step);
  v.required("steps", m.steps);
  v.optional("end_checkpoint_uri", m.end_checkpoint_uri);
  v.optional("evaluate_endpoints", m.evaluate_endpoints);
  v.optional("perturb", m.perturb);
  v.optional("perturb_scale", m.perturb_scale);
}

template <class V>
void visit_members(V& v, Lease& m) {
  v.required("lease", m.lease);
  v.required("token", m.token);
  v.required("ttl_seconds", m.ttl_seconds);
  v.required("task", m.task);
}

template <class V>
void visit_members(V& v, LeaseHeartbeat& m) {
  v.required("token", m.token);
  v.optional("steps_done", m.steps_done);
}

template <class V>
void visit_members(V& v, ReplayStep& m) {
  v.required("step", m.step);
  v.required("loss", m.loss);
  v.required("grad_norm", m.grad_norm);
  v.optional("weights_hash", m.weights_hash);
  v.optional("batch_hash", m.batch_hash);
}

template <class V>
void visit_members(V& v, SiteScoreRow& m) {
  v.required("site", m.site);
  v.required("phi", m.phi);
  v.required("psi", m.psi);
  v.required("sqnr_db", m.sqnr_db);
}

template <class V>
void visit_members(V& v, ReplayResult& m) {
  v.required("token", m.token);
  v.required("fingerprint", m.fingerprint);
  v.required("steps", m.steps);
  v.optional("start_loss_bf16", m.start_loss_bf16);
  v.optional("start_loss_plan", m.start_loss_plan);
  v.optional("run_end_loss_bf16", m.run_end_loss_bf16);
  v.optional("replay_end_loss_bf16", m.replay_end_loss_bf16);
  v.optional("heldout_tokens", m.heldout_tokens);
  v.optional("replay_seconds", m.replay_seconds);
  v.optional("eval_seconds", m.eval_seconds);
  v.optional("time", m.time);
  v.optional("start_loss_fakequant", m.start_loss_fakequant);
  v.optional("gap_error", m.gap_error);
  v.optional("scores", m.scores);
}

template <class V>
void visit_members(V& v, LeaseFailure& m) {
  v.required("token", m.token);
  v.required("reason", m.reason);
  v.optional("retryable", m.retryable);
}

template <class V>
void visit_members(V& v, Problem& m) {
  v.optional("type", m.type);
  v.optional("title", m.title);
  v.optional("status", m.status);
  v.optional("detail", m.detail);
  v.optional("accepted", m.accepted);
}

}  // namespace gnomon
