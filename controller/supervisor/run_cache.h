// The only caller of decide(). Every function that takes a LedgerTransaction runs on the ledger's
// writer thread inside one write: it inserts the facts, tells the decision core, and writes down
// what the core wants done, all in that one transaction. Metrics are updated and waiters woken only
// after COMMIT. The core's state is cached between writes and forgotten when a write is undone, so
// that it can never be ahead of the ledger.
#pragma once

#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "controller/bell.h"
#include "controller/deadlines.h"
#include "controller/decide/decide.h"
#include "controller/metrics/metrics.h"
#include "controller/metrics/totals.h"
#include "controller/notify/outbox.h"
#include "controller/set_aside.h"
#include "controller/verdict_board.h"
#include "protocol/records.h"
#include "storage/ledger.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_windows.h"

namespace gnomon {

// Throws Refusal (400) when who asks, or why, is blank.
void check_asker(const std::string& owner, const std::string& reason);
// Throws Refusal (400) for a step beyond all that this run can have: many times the steps that its
// trainer said it would take, which is more than any schedule is prolonged by. `member` names it.
void require_step_of(const RunRegistration& run, int64_t step, std::string_view member,
                     int64_t least);
// Throws Refusal (409) when the run never began it.
AttemptRow known_attempt(Connection& connection, int64_t run, int64_t attempt);

// Which process of a trainer speaks; docs/api.md.
struct TrainerProcess {
  std::string incarnation = {};  // empty: it does not say
  double running_seconds = 0;    // when it registers: since its start
};

struct RunCacheOptions {
  std::string default_policy;                      // TOML for new runs, checked
  double series_keep_seconds = 3600;               // metrics of an ended run
  std::vector<std::string> checkpoint_roots = {};  // absolute, normal; empty: anywhere
  notify::Outbox* outbox = nullptr;                // null: nobody is told; outlives the cache
};

class RunCache {
 public:
  // `now` in seconds since the epoch; `steady_now` in seconds of a clock that never jumps.
  RunCache(Metrics& metrics, Bells& bells, RunCacheOptions options, std::function<double()> now,
           std::function<double()> steady_now);

  // Rebuilds the metrics and the deadlines from the ledger; to be called once, before the first
  // request. The decision states are cached when they are first needed. A run that cannot be read
  // is set aside, so that the others go on.
  void restore(Connection& connection);
  // Writes down the states that restore() had to compute from their events.
  void save_rebuilt(LedgerTransaction& transaction);

  // The runs that cannot be served, and all that reads states.
  SetAsideRuns& set_aside() { return set_aside_; }
  // False: the run is set aside, being deleted, or not there.
  bool readable(LedgerTransaction& transaction, int64_t run);
  // Records a notice and stops giving out the run's work.
  void tell_set_aside(LedgerTransaction& transaction, const SetAsideRuns::Entry& entry);

  // The calls of a trainer. All throw Refusal. Repeating one that was accepted changes nothing.
  // Of two processes that say who they are, the one that started later has the run from then on.
  RunRegistered register_run(LedgerTransaction& transaction, const RunRegistration& registration,
                             const TrainerProcess& process = {});
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

  // The same notice twice is kept once.
  ReportAck report_notice(LedgerTransaction& transaction, int64_t run, const TrainerNotice& notice);

  // Rows that are on record already stay as they are.
  ReportAck report_statistics(LedgerTransaction& transaction, int64_t run,
                              const StatisticsReport& report);

  // gnomond's own word for people, of a kind of kOwnNoticeKinds; no decision rests on it.
  void note(LedgerTransaction& transaction, int64_t run, std::string_view kind,
            const std::string& text);

  // Of an operator. `toml` is checked; throws ConfigError.
  void set_policy(LedgerTransaction& transaction, int64_t run, const std::string& toml);
  // Of runs that register from now on; checked. From any thread.
  void set_default_policy(const std::string& toml);
  // Throws Refusal: 400 for values, 409 when it makes no sense now; ConfigError for the plan.
  OverrideAccepted override_run(LedgerTransaction& transaction, int64_t run,
                                const OverrideRequest& request);

  // The run's trainer has said something, whatever it is: a report, a poll for directives, a
  // request for work. From any thread.
  void heard_from(int64_t run);
  // Of an operator: the trainer is gone for good, the run has failed. Throws Refusal: 409 when it
  // has ended otherwise, or its trainer has spoken lately.
  void end_run(LedgerTransaction& transaction, int64_t run, const EndRequest& request);

  // Of an administrator. Deletes a run that has ended, about a thousand rows with each call; true
  // when it is gone. From the first call on nobody else's call takes the run (409), and an
  // interrupted deletion goes on with the next one. Throws Refusal: 404, 409 while the run is live.
  // Its leases are ended in the same write: Leases::end_leases_of().
  bool delete_run(LedgerTransaction& transaction, int64_t run);

  // Of the leases: a replay ended for good.
  void replay_finished(LedgerTransaction& transaction, const ReplayRow& replay,
                       const std::string& verifier, const ReplayResult& result);
  void replay_failed(LedgerTransaction& transaction, const ReplayRow& replay,
                     const std::string& reason);
  const decide::Policy& policy(LedgerTransaction& transaction, int64_t run);

  // Of a timer. Runs for which tick() has something to do; from any thread.
  std::vector<int64_t> due_runs() const { return deadlines_.due(now()); }
  // Tells the core that the time it waited for has come; does nothing when it has not.
  void tick(LedgerTransaction& transaction, int64_t run);
  // Writes down the states that are behind, as a start under another version wants them.
  void save_all(LedgerTransaction& transaction);

  // What each live run's verdict is made of. The clock for it is now().
  VerdictBoard& verdicts() { return verdicts_; }
  const VerdictBoard& verdicts() const { return verdicts_; }
  // Before a scrape: the verdict, and what ages with the clock.
  void show_verdicts();

  double now() const { return now_(); }
  double steady_now() const { return steady_now_(); }

 private:
  double silent_for(int64_t run) const;

  // What is cached about a run between writes.
  struct Run {
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

  // Throws Refusal: 404, 409 while it is being deleted, 503 while it is set aside.
  Run& load(LedgerTransaction& transaction, int64_t run);
  void restore_run(Connection& connection, const RunRow& row);
  // What is kept in memory of a run; `late` is told of effects that it has now.
  Run read_run(Connection& connection, const RunRow& row, const LateEffects& late);
  // Throws Refusal (409).
  void refuse_while_trainer_speaks(int64_t run, const std::string& label) const;
  // Takes an ended run out of memory behind this write, unless it goes on meanwhile.
  void forget_when_ended(LedgerTransaction& transaction, int64_t id);
  // Of a run that had stopped or failed and goes on.
  void revive(LedgerTransaction& transaction, Run& run);
  // The same, with the attempt that was under way, whose next report is `step`.
  void go_on(LedgerTransaction& transaction, Run& run, const StepReport& step);
  RunRegistered register_again(LedgerTransaction& transaction, Run& run,
                               const RunRegistration& registration);
  // Records the event, tells the core, carries out and returns what it wants; the state is saved
  // when the write ends. When the core fails, throws an Error that is nobody's fault outside (500).
  std::vector<decide::Effect> hear(LedgerTransaction& transaction, Run& run,
                                   const decide::Event& event);
  // Records a step and tells the core; false where it is on record.
  bool hear_step(LedgerTransaction& transaction, Run& run, const StepReport& step, double time);
  // Of the event that is run.seq + 1.
  std::vector<decide::Effect> tell_core(LedgerTransaction& transaction, Run& run,
                                        const decide::Event& event, double time);
  // Saves the state once, after all else that this write does.
  void save_at_end(LedgerTransaction& transaction, Run& run);
  // Writes the state that the events of this write led to, and shows it.
  void save(LedgerTransaction& transaction, Run& run);
  // Shows what may change with any event.
  void show(LedgerTransaction& transaction, const Run& run);
  static ReportAck ack(LedgerTransaction& transaction, Run& run, int64_t accepted,
                       int64_t repeated);
  static void check_step(LedgerTransaction& transaction, Run& run, const StepReport& report);
  // Throws Refusal (409, kUnknownPlan) for a plan that the run has never had.
  static void check_plan(Connection& connection, Run& run, int64_t plan_version);
  // Whose the run is from now on. Throws Refusal (409, kTrainerReplaced).
  void take_over(LedgerTransaction& transaction, int64_t run, const TrainerProcess& process);
  // Of a step that was not on record, which carries one. Returns the host that the device is of.
  std::string take_health(LedgerTransaction& transaction, const Run& run, const StepReport& report);
  // False when the very same notice is on record.
  bool add_notice(LedgerTransaction& transaction, const Run& run, const TrainerNotice& notice);
  // What the bits of an attempt depend on.
  static Fingerprint fingerprint_of(Connection& connection, const Run& run, int64_t attempt);
  // What the work board goes by: the policy, the backend that the newest attempt runs on, and which
  // verifiers are not believed.
  static WorkBoard::Terms terms_of(Connection& connection, const Run& run);
  void set_terms_on_commit(LedgerTransaction& transaction, const Run& run);
  void show_layers(LedgerTransaction& transaction, Run& run, int64_t plan_version);

  void stream(LedgerTransaction& transaction, int64_t run, const std::string& type,
              const std::string& body);
  // Of what an event led to; null: an event of before, which is thought of otherwise now.
  void tell_people(LedgerTransaction& transaction, const Run& run, const decide::Event* event,
                   const std::vector<decide::Effect>& effects, double time);
  void tell_of_notice(LedgerTransaction& transaction, const Run& run, const TrainerNotice& notice,
                      int64_t number);
  static notify::Subject subject_of(const Run& run);

  Metrics& metrics_;
  Bells& bells_;
  RunCacheOptions options_;
  std::function<double()> now_;
  std::function<double()> steady_now_;
  const double begun_at_;  // steady
  mutable std::mutex heard_mutex_;
  std::map<int64_t, double> heard_at_;  // steady; when a run's trainer last said anything
  std::map<int64_t, Run> runs_;         // the writer's thread only
  std::vector<int64_t> rebuilt_;        // by restore()
  SetAsideRuns set_aside_;
  std::mutex default_policy_mutex_;
  Deadlines deadlines_;
  VerdictBoard verdicts_;
};

}  // namespace gnomon
