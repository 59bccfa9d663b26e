#include "controller/supervisor/cached_run.h"

#include <algorithm>

#include "protocol/json.h"
#include "protocol/labels.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_windows.h"

namespace gnomon {

Fingerprint fingerprint_of(Connection& connection, const CachedRun& run, int64_t attempt) {
  std::optional<AttemptRow> row = ledger::find_attempt(connection, run.id, attempt);
  return row && row->fingerprint ? from_json<Fingerprint>(*row->fingerprint)
                                 : run.registration.fingerprint;
}

ReplayQueue::SchedulingTerms terms_of(Connection& connection, const CachedRun& run) {
  const decide::Policy::Verifier& verifier = run.policy.verifier;
  const RunRegistration& registration = run.registration;
  ReplayQueue::SchedulingTerms terms{verifier.share, verifier.requirements,
                                     registration.trainer_replays};
  terms.checkpoint_format = registration.checkpoint_format;
  terms.framework = registration.framework;
  // A replay runs where its run does unless the verifier was told otherwise, and a CPU is anywhere.
  const std::string key = std::string(kBackendLabel) + "=";
  const bool says_so = std::ranges::any_of(
      terms.requirements, [&](const std::string& one) { return one.starts_with(key); });
  const std::string backend =
      fingerprint_of(connection, run, ledger::newest_attempt(connection, run.id)).backend;
  if (backend == "cuda" && !says_so) terms.requirements.push_back(key + backend);
  terms.quarantined = ledger::quarantined_verifiers(connection, run.id);
  return terms;
}

ReportAck report_ack(LedgerTransaction& transaction, CachedRun& run, int64_t accepted,
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
