// Rows of what people are told and what they ask for: trainers' notices and operators' overrides.
// As in ledger_runs.h.
#pragma once

#include <optional>
#include <string>

#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

// Beyond it the oldest notice of the run goes.
inline constexpr int64_t kNoticesMax = 10'000;

// The notice's number in its run; nothing when the very same notice is on record already.
std::optional<int64_t> insert_notice(Connection& connection, int64_t run,
                                     const TrainerNotice& notice, double now);

struct OverrideRow {
  OverrideRequest request;
  double asked_at = 0;
  std::optional<double> expires_at;
  int64_t decision = 0;
  std::optional<int64_t> directive;
};

// The override's number in its run.
int64_t insert_override(Connection& connection, int64_t run, const OverrideRow& row);

}  // namespace gnomon::ledger
