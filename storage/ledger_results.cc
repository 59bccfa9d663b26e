#include "storage/ledger_results.h"

namespace gnomon::ledger {

std::optional<RecordedResult> find_result(Connection& connection, int64_t run, int64_t replay) {
  RecordedResult known;
  ReplayResult& result = known.result;
  {
    Query row = connection.query(
        "SELECT token, fingerprint, start_loss_bf16, start_loss_plan, run_end_loss_bf16, "
        "replay_end_loss_bf16, heldout_tokens, replay_seconds, eval_seconds, gap_error, "
        "start_loss_fakequant FROM results WHERE run = ? AND replay = ?",
        run, replay);
    if (!row.next()) return std::nullopt;
    result.token = row.integer(0);
    known.fingerprint = row.text(1);
    result.start_loss_bf16 = row.optional_real(2);
    result.start_loss_plan = row.optional_real(3);
    result.run_end_loss_bf16 = row.optional_real(4);
    result.replay_end_loss_bf16 = row.optional_real(5);
    result.heldout_tokens = row.integer(6);
    result.replay_seconds = row.real(7);
    result.eval_seconds = row.real(8);
    result.gap_error = row.optional_real(9);
    result.start_loss_fakequant = row.optional_real(10);
  }
  Query steps = connection.query(
      "SELECT step, loss, grad_norm, weights_hash, batch_hash FROM replay_steps WHERE run = ? AND "
      "replay = ? ORDER BY step",
      run, replay);
  while (steps.next()) {
    result.steps.push_back(
        {steps.integer(0), steps.real(1), steps.real(2), steps.text(3), steps.text(4)});
  }
  Query scores = connection.query(
      "SELECT site, phi, psi, sqnr_db FROM scores WHERE run = ? AND replay = ? ORDER BY site", run,
      replay);
  while (scores.next()) {
    result.scores.push_back({scores.text(0), scores.real(1), scores.real(2), scores.real(3)});
  }
  return known;
}

}  // namespace gnomon::ledger
