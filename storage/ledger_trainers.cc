#include "storage/ledger_trainers.h"

namespace gnomon::ledger {

std::optional<TrainerRow> find_trainer(Connection& connection, int64_t run) {
  Query query = connection.query("SELECT incarnation, started_at FROM trainers WHERE run = ?", run);
  if (!query.next()) return std::nullopt;
  return TrainerRow{query.text(0), query.real(1)};
}

void set_trainer(Connection& connection, int64_t run, const TrainerRow& trainer) {
  connection.execute(
      "INSERT OR REPLACE INTO trainers (run, incarnation, started_at) VALUES (?, ?, ?)", run,
      trainer.incarnation, trainer.started_at);
}

void forget_trainer(Connection& connection, int64_t run) {
  connection.execute("DELETE FROM trainers WHERE run = ?", run);
}

}  // namespace gnomon::ledger
