// What is kept in memory of a run between writes, and what is made of that and the ledger.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "controller/decide/decide.h"
#include "controller/metrics/totals.h"
#include "controller/supervisor/replay_queue.h"
#include "protocol/records.h"
#include "storage/ledger.h"

namespace gnomon {

struct CachedRun {
  int64_t id = 0;
  std::string label;
  std::string life;  // live, completed, stopped, failed
  RunRegistration registration;
  decide::Policy policy;
  std::string policy_text;  // as it was given
  decide::State state;
  int64_t seq = 0;
  int64_t newest_plan = -1;  // whose layers the metrics show
  // When the state was last written down, steady clock seconds, and the events since.
  double saved_at = 0;
  int64_t unsaved = 0;
  bool save_due = false;                    // when this write ends
  std::map<int64_t, int64_t> base_steps;    // by attempt, of those that reports came from
  std::pair<int64_t, int64_t> newest_step;  // attempt and step of the last one on record
  std::set<int64_t> known_plans;            // that reports were taken with
  std::optional<ReportAck> ack;             // what answers have, but for the counts
  StepTotals totals;                        // of the steps since
};

// What the bits of an attempt depend on.
Fingerprint fingerprint_of(Connection& connection, const CachedRun& run, int64_t attempt);
// What the replay queue goes by: the policy, the backend that the newest attempt runs on, and which
// verifiers are not believed.
ReplayQueue::SchedulingTerms terms_of(Connection& connection, const CachedRun& run);
// The answer to a report, of which so much is new and so much was on record.
ReportAck report_ack(LedgerTransaction& transaction, CachedRun& run, int64_t accepted,
                     int64_t repeated);

}  // namespace gnomon
