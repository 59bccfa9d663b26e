#include "controller/supervisor/replays.h"

#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "controller/supervisor/replay_results.h"
#include "protocol/json.h"
#include "storage/ledger_runs.h"

namespace gnomon {

void replay_finished(WriteContext write, const ReplayRow& replay, const std::string& verifier,
                     const ReplayResult& result) {
  CachedRun& run = write.runs.load(write.transaction, replay.run);
  Connection& connection = write.transaction.connection();
  const WindowRow window =
      ledger::find_window(connection, replay.run, replay.window).value();  // Leases looked at it
  double time = write.runs.now();
  ledger::insert_result(connection, replay, verifier, to_json(result.fingerprint), result, time);
  std::vector<StepRow> run_steps =
      ledger::steps_between(connection, replay.run, window.attempt, window.start_step + 1,
                            window.start_step + window.steps);
  decide::ReplayFinished event =
      join_replay(replay, result, run_steps, fingerprint_of(connection, run, window.attempt),
                  verifier, replay.on_trainer || is_trainer(verifier));
  if (!run.registration.capabilities.exact_replay) {
    event.fingerprint_equal = false;
    event.fingerprint.clear();
  }
  write.runs.record_event(write.transaction, run, event);
  double seconds = result.replay_seconds + result.eval_seconds;
  std::optional<std::pair<double, double>> shadow;
  if (replay.arm == "bf16" && replay.purpose == "shadow" && !event.losses.empty() &&
      std::isfinite(event.run_losses.back())) {
    shadow = {event.losses.back(), event.run_losses.back()};
  }
  write.transaction.on_commit([&runs = write.runs, id = run.id, seconds, shadow] {
    runs.metrics().update_run(id, [&](RunNumbers& numbers) {
      numbers.verify_seconds += seconds;
      if (shadow) {
        numbers.shadow_loss = shadow->first;
        numbers.paired_loss = shadow->second;
      }
    });
  });
}

void replay_failed(WriteContext write, const ReplayRow& replay, const std::string& reason) {
  CachedRun& run = write.runs.load(write.transaction, replay.run);
  write.runs.record_event(write.transaction, run,
                          decide::ReplayFailed{replay.replay, replay.window, replay.arm, reason});
}

}  // namespace gnomon
