// Which process trains a run: the one that started last of those that said who they are. As in
// ledger_runs.h.
#pragma once

#include <optional>
#include <string>

#include "storage/ledger_connection.h"

namespace gnomon::ledger {

struct TrainerRow {
  std::string incarnation;
  double started_at = 0;
};

std::optional<TrainerRow> find_trainer(Connection& connection, int64_t run);
void set_trainer(Connection& connection, int64_t run, const TrainerRow& trainer);
// Called when a run's trainer does not say who it is.
void forget_trainer(Connection& connection, int64_t run);

}  // namespace gnomon::ledger
