// The only caller of decide(). Every function that takes a LedgerTransaction runs on the ledger's
// writer thread inside one write: it inserts the facts, tells the decision core, and writes down
// what the core wants done, all in that one transaction. Metrics are updated and waiters woken only
// after COMMIT. The core's state is cached between writes and forgotten when a write is undone, so
// that it can never be ahead of the ledger.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "controller/bell.h"
#include "controller/decide/decide.h"
#include "controller/metrics/metrics.h"
#include "protocol/messages.h"
#include "storage/ledger.h"
#include "storage/ledger_windows.h"

namespace gnomon {

struct SupervisorOptions {
  std::string default_policy;         // TOML for new runs, checked
  double series_keep_seconds = 3600;  // metrics of an ended run
};

class Supervisor {
 public:
  // `now` in seconds since the epoch; `steady_now` in seconds of a clock that never jumps.
  Supervisor(Metrics& metrics, Bells& bells, SupervisorOptions options, std::function<double()> now,
             std::function<double()> steady_now);

  // Rebuilds the metrics from the ledger; to be called once, before the first request. The decision
  // states are read when they are first needed.
  void restore(Connection& connection);

  // The calls of a trainer. All throw Refusal. Repeating one that was accepted changes nothing.
  RunRegistered register_run(LedgerTransaction& transaction, const RunRegistration& registration);
  ReportAck start_attempt(LedgerTransaction& transaction, int64_t run, const AttemptStart& attempt);
  // Takes all of the batch or, on a conflict, nothing.
  ReportAck report_steps(LedgerTransaction& transaction, int64_t run, const StepBatch& batch);
  ReportAck report_checkpoint(LedgerTransaction& transaction, int64_t run,
                              const CheckpointReport& checkpoint);
  ReportAck finish(LedgerTransaction& transaction, int64_t run, const RunFinished& finished);
  // Open directives above `after`; pending ones become delivered.
  DirectiveList deliver_directives(LedgerTransaction& transaction, int64_t run, int64_t after);
  Directive acknowledge(LedgerTransaction& transaction, int64_t run, int64_t number,
                        const DirectiveAck& ack);

  // Of an operator. `toml` is checked; throws ConfigError.
  void set_policy(LedgerTransaction& transaction, int64_t run, const std::string& toml);

  // Of the leases: a replay ended for good.
  void replay_finished(LedgerTransaction& transaction, const ledger::ReplayRow& replay,
                       const std::string& verifier, const ReplayResult& result);
  void replay_failed(LedgerTransaction& transaction, const ledger::ReplayRow& replay,
                     const std::string& reason);
  const decide::Policy& policy(LedgerTransaction& transaction, int64_t run);

  double now() const { return now_(); }
  double steady_now() const { return steady_now_(); }

 private:
  // What is cached about a run between writes.
  struct Run {
    int64_t id = 0;
    std::string label;
    std::string life;  // live, completed, stopped, failed
    RunRegistration registration;
    decide::Policy policy;
    decide::State state;
    int64_t seq = 0;
    int64_t newest_plan = -1;  // whose layers the metrics show
  };

  // Throws Refusal (404).
  Run& load(LedgerTransaction& transaction, int64_t run);
  void hear(LedgerTransaction& transaction, Run& run, const decide::Event& event);
  // Writes the state that the events of this write led to.
  void save(LedgerTransaction& transaction, Run& run);
  ReportAck ack(LedgerTransaction& transaction, const Run& run, int64_t accepted, int64_t repeated);
  void check_step(LedgerTransaction& transaction, const Run& run, const StepReport& report,
                  std::map<int64_t, bool>& attempts_seen);
  void show_layers(LedgerTransaction& transaction, Run& run, int64_t plan_version);

  void stream(LedgerTransaction& transaction, int64_t run, const std::string& type,
              const std::string& body);

  Metrics& metrics_;
  Bells& bells_;
  SupervisorOptions options_;
  std::function<double()> now_;
  std::function<double()> steady_now_;
  std::map<int64_t, Run> runs_;  // the writer's thread only
};

}  // namespace gnomon
