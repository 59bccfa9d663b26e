#include "controller/supervisor/alerts.h"

namespace gnomon {
namespace {

notify::Subject subject_of(const CachedRun& run) {
  return {run.id, run.registration.name, run.registration.job_id,
          std::string(decide::mode_name(decide::mode_in_force(run.state, run.policy)))};
}

}  // namespace

void notify_people(notify::Outbox* outbox, LedgerTransaction& transaction, const CachedRun& run,
                   const decide::Event* event, const std::vector<decide::Effect>& effects,
                   double time) {
  if (!outbox || !outbox->anybody()) return;
  const auto enqueue = [&](const notify::Alert& alert) {
    outbox->enqueue(transaction, run.id, alert, time);
  };
  if (const auto* started = event ? std::get_if<decide::AttemptStarted>(event) : nullptr) {
    enqueue(notify::attempt_alert(subject_of(run), *started, time));
  }
  for (const decide::Effect& effect : effects) {
    if (const auto* decision = std::get_if<decide::RecordDecision>(&effect)) {
      enqueue(notify::decision_alert(subject_of(run), *decision, time));
    } else if (const auto* quarantine = std::get_if<decide::QuarantineVerifier>(&effect)) {
      enqueue(notify::quarantine_alert(subject_of(run), *quarantine, time));
    }
  }
  outbox->enqueue_conditions(
      transaction, [&] { return subject_of(run); }, run.id, run.state, time);
  if (const auto* ended = event ? std::get_if<decide::RunEnded>(event) : nullptr) {
    enqueue(notify::ended_alert(subject_of(run), *ended, run.state.attempt.number, time));
  }
}

void notify_of_notice(notify::Outbox* outbox, LedgerTransaction& transaction, const CachedRun& run,
                      const TrainerNotice& notice, int64_t number, double time) {
  if (!outbox || !outbox->anybody()) return;
  outbox->enqueue(transaction, run.id, notify::notice_alert(subject_of(run), notice, number, time),
                  time);
}

}  // namespace gnomon
