// The only caller of decide(), and what is kept in memory of each run between writes. Every
// function that takes a LedgerTransaction runs on the ledger's writer thread inside one write: it
// inserts the facts, gives them to the decision core, and writes down what the core wants done, all
// in that one transaction. Metrics are updated and waiters woken only after COMMIT. The core's
// state is forgotten when a write is undone, so that it can never be ahead of the ledger.
//
// What a call of a trainer or an operator does to a run is in the files beside this one, a subject
// each: free functions that take a WriteContext. They call RunCache, which calls none of them.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "controller/metrics/metrics.h"
#include "controller/notify/outbox.h"
#include "controller/supervisor/cached_run.h"
#include "controller/supervisor/change_notifier.h"
#include "controller/supervisor/deadlines.h"
#include "controller/supervisor/decision_state.h"
#include "controller/supervisor/replay_queue.h"
#include "controller/supervisor/set_aside.h"
#include "controller/supervisor/verdict_board.h"
#include "storage/ledger.h"
#include "storage/ledger_runs.h"

namespace gnomon {

struct RunCacheOptions {
  std::string default_policy;                      // TOML for new runs, checked
  double series_keep_seconds = 3600;               // metrics of an ended run
  std::vector<std::string> checkpoint_roots = {};  // absolute, normal; empty: anywhere
  notify::Outbox* outbox = nullptr;                // null: nobody is notified; outlives the cache
};

class RunCache {
 public:
  // `now` in seconds since the epoch; `steady_now` in seconds of a clock that never jumps.
  RunCache(Metrics& metrics, ReplayQueue& queue, ChangeNotifiers& notifiers,
           RunCacheOptions options, std::function<double()> now,
           std::function<double()> steady_now);

  // Rebuilds the metrics and the deadlines from the ledger; to be called once, before the first
  // request. The decision states are cached when they are first needed. A run that cannot be read
  // is set aside, so that the others go on.
  void restore(Connection& connection);
  // Writes down the states that restore() had to compute from their events.
  void save_rebuilt(LedgerTransaction& transaction);
  // Writes down the states that are behind, as a start under another version wants them.
  void save_all(LedgerTransaction& transaction);

  // The run as it is now, until the write ends. Throws HttpError: 404, 409 while it is being
  // deleted, 503 while it is set aside.
  CachedRun& load(LedgerTransaction& transaction, int64_t id);
  // False: the run is set aside, being deleted, or not there.
  bool readable(LedgerTransaction& transaction, int64_t run);
  // Called for a run that was set aside and can be read again, with the write that found that.
  void on_return(std::function<void(LedgerTransaction&, int64_t run)> call) {
    on_return_ = std::move(call);
  }
  // True: load() reads nothing.
  bool has(int64_t run) const { return runs_.contains(run); }
  // A run that is being deleted leaves memory, and after the commit all that is shown of it.
  void forget(LedgerTransaction& transaction, int64_t id);
  // Takes an ended run out of memory behind this write, unless it goes on meanwhile.
  void forget_when_ended(LedgerTransaction& transaction, int64_t id);

  // Records the event, steps the core with it, applies its effects and returns them; the state is
  // saved when the write ends. When the core fails, throws an Error that is nobody's fault outside
  // (500).
  std::vector<decide::Effect> record_event(LedgerTransaction& transaction, CachedRun& run,
                                           const decide::Event& event);
  // The same with the event that is run.seq + 1 and on record already; the state is saved when it
  // has effects.
  std::vector<decide::Effect> step(LedgerTransaction& transaction, CachedRun& run,
                                   const decide::Event& event, double time);
  // Records a tick when the time that the core waits for has come.
  void tick(LedgerTransaction& transaction, int64_t id);

  // Saves the state once, after all else that this write does.
  void save_at_end(LedgerTransaction& transaction, CachedRun& run);
  // Writes the state that the events of this write led to, and shows it.
  void save(LedgerTransaction& transaction, CachedRun& run);
  // Shows what may change with any event.
  void show(LedgerTransaction& transaction, const CachedRun& run);
  void set_terms_on_commit(LedgerTransaction& transaction, const CachedRun& run);
  // A row of the stream, for those who follow it.
  void stream(LedgerTransaction& transaction, int64_t run, const std::string& type,
              const std::string& body);

  // The run's trainer has sent a report, a poll for directives or a request for work. From any
  // thread.
  void record_contact(int64_t run);
  // Seconds since the last contact of the run's trainer, as far as this process knows.
  double silent_for(int64_t run) const;

  // The policy of runs that register from now on; checked. From any thread.
  void set_default_policy(const std::string& toml);
  std::string default_policy();
  // All but the default policy.
  const RunCacheOptions& options() const { return options_; }

  // The runs that cannot be served, and all that reads states.
  SetAsideRuns& set_aside() { return set_aside_; }
  // The runs for which tick() has something to do; from any thread.
  Deadlines& deadlines() { return deadlines_; }
  // What each live run's verdict is made of. The clock for it is now().
  VerdictBoard& verdicts() { return verdicts_; }
  const VerdictBoard& verdicts() const { return verdicts_; }
  // Before a scrape: the verdict, and what ages with the clock.
  void show_verdicts();
  Metrics& metrics() { return metrics_; }
  ReplayQueue& queue() { return queue_; }
  ChangeNotifiers& notifiers() { return notifiers_; }

  double now() const { return now_(); }
  double steady_now() const { return steady_now_(); }

 private:
  void restore_run(Connection& connection, const RunRow& row);
  void restore_again(LedgerTransaction& transaction, const RunRow& row, const std::string& reason);
  // What is kept in memory of a run; `late` is called with the effects that it has now.
  CachedRun read_run(Connection& connection, const RunRow& row, const LateEffects& late);

  Metrics& metrics_;
  ReplayQueue& queue_;
  ChangeNotifiers& notifiers_;
  RunCacheOptions options_;
  std::function<double()> now_;
  std::function<double()> steady_now_;
  const double begun_at_;  // steady
  mutable std::mutex contact_mutex_;
  std::map<int64_t, double> contact_at_;  // steady; the last contact of a run's trainer
  std::map<int64_t, CachedRun> runs_;     // the writer's thread only
  std::vector<int64_t> rebuilt_;          // by restore()
  SetAsideRuns set_aside_;
  std::function<void(LedgerTransaction&, int64_t)> on_return_;
  std::mutex default_policy_mutex_;
  Deadlines deadlines_;
  VerdictBoard verdicts_;
};

// One write, as what changes runs in it has it.
struct WriteContext {
  RunCache& runs;
  LedgerTransaction& transaction;
};

}  // namespace gnomon
