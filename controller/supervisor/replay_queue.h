// The replays that wait for a verifier, the verifiers that wait for a replay, and whose turn it is.
// A mirror in memory of what the ledger has queued, so that neither a request nor a new replay
// costs more where a thousand runs and ten thousand verifiers are. The ledger has the last word: a
// replay that is granted is still queued there, with the entry's token.
//
// Whose turn: the run that has used the least of the verifiers' time lately for its share, its
// leases counted with the time that its leases mostly take, and time that has passed counted half
// after ten minutes; of its replays the one with the highest priority, then the oldest. So a run in
// trouble, which orders many replays, does not keep the others' windows waiting, and a policy can
// give a run more than others.
//
// Nor do the replays of a case keep the run's own shadows waiting: while one of the case's is under
// way a shadow that waits comes first, and else they take turns. So a case always goes on, with one
// verifier at half its speed at worst.
//
// Thread-safe. Times are seconds of a clock that never jumps.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "protocol/labels.h"
#include "protocol/records/replay.h"

namespace gnomon {

struct QueuedReplay {
  int64_t run = 0;
  int64_t replay = 0;
  int64_t window = 0;
  int64_t token = 0;  // grows with each lease, so that an entry that comes back is another one
  int64_t priority = 0;
  double ordered_at = 0;    // seconds since the epoch
  bool on_trainer = false;  // only the run's own trainer can do it
  std::string arm = {};
  std::set<std::string> refused_by = {};  // verifiers that have said they cannot do such a replay
  bool can_be_done_by(const std::string& name, const Abilities& can) const {
    return can.can_replay(arm) && !refused_by.contains(name);
  }
};

// What a verifier has said of itself.
struct VerifierProfile {
  Labels labels;
  Abilities can;
};

class ReplayQueue {
 public:
  // Run, replay and token.
  using Key = std::tuple<int64_t, int64_t, int64_t>;
  static Key key(const QueuedReplay& entry) { return {entry.run, entry.replay, entry.token}; }

  struct Worker {
    std::string name;
    Labels labels;
    int64_t trainer_of = 0;       // the run whose trainer it is; 0: a verifier
    std::set<Key> declined = {};  // what it was found unable to do
    Abilities can = {};
  };
  struct SchedulingTerms {
    double share = 1;
    std::vector<std::string> requirements = {};
    bool trainer_replays = false;  // the run's trainer does its replays while nobody else can
    std::set<std::string> quarantined = {};  // names of those whose answers it does not believe
    std::string checkpoint_format = {};      // as the run names them
    std::string framework = {};
    bool believe(const std::string& verifier) const { return !quarantined.contains(verifier); }
    bool readable_by(const Abilities& can) const {
      return can.can_read(checkpoint_format, framework);
    }
    bool met_by(const Labels& labels, const Abilities& can) const {
      return fits(labels, requirements) && readable_by(can);
    }
    bool operator==(const SchedulingTerms&) const = default;
  };

  // SchedulingTerms of a run; those of one that was never set are the defaults. Wakes who fits now.
  void set_terms(int64_t run, SchedulingTerms terms);
  // Adds to those whom the run does not believe.
  void quarantine(int64_t run, const std::string& name);
  // A verifier of this name is believed and has what the run wants, by its terms. One that is not
  // known (null) is taken to have it.
  bool suits(int64_t run, const std::string& name, const VerifierProfile* profile) const;

  // The trainer of a known run asks for replays, and counts as one who does until `counts_until`.
  void record_trainer(int64_t run, const Abilities& can, double counts_until);
  // True when the trainer can do this arm, as far as is known.
  bool trainer_can(int64_t run, const std::string& arm) const;
  // True when the trainer asks now and may do this arm in place of verifiers.
  bool trainer_takes(int64_t run, const std::string& arm, double now) const;

  // Adds to the queue and wakes one worker that waits and fits. One that is there stays.
  void add(const QueuedReplay& entry);
  void remove(int64_t run, int64_t replay);
  void cancel(int64_t run, int64_t window);
  void forget_run(int64_t run);  // and all that is known of it
  int64_t queued() const;
  // Replays that need not be their run's trainer's, run by run.
  struct Backlog {
    int64_t run = 0;
    std::vector<QueuedReplay> replays;
    SchedulingTerms terms;
  };
  std::vector<Backlog> backlog() const;
  // Those that only a run's trainer can do.
  std::vector<QueuedReplay> for_trainers() const;

  // True when a case asks for it (triage, attribution).
  static bool of_case(int64_t priority);
  // A lease of this run began; it ended after `seconds`, at `now`; or it never was. `of_case`: of
  // such a replay.
  void lease_began(int64_t run, bool of_case = false);
  void lease_ended(int64_t run, double seconds, double now);
  void lease_undone(int64_t run);
  // After a restart: the run's newest leases, so many in a row, were of a case.
  void restore_turn(int64_t run, int64_t cases_in_row);

  // What this worker may try, in the order of turns, at most `most`.
  std::vector<QueuedReplay> candidates(const Worker& worker, size_t most, double now) const;

  // Calls `wake` once when there is something to try that there was not; from any thread, and it
  // must be short. 0, and nothing is registered, when there is something now.
  uint64_t wait(const Worker& worker, std::function<void()> wake);
  // Takes a wait back; its callback may just be running. False when it has been woken: whoever then
  // leaves without work calls wake_matching().
  bool forget(uint64_t ticket);
  // Wakes a worker for each replay in the queue that one who waits may try.
  void wake_matching();
  // Wakes everybody.
  void wake_all();

 private:
  // The highest priority, then age.
  using Order = std::tuple<int64_t, double, int64_t>;
  struct Run {
    SchedulingTerms terms;
    Abilities trainer;  // what its trainer can do
    double trainer_counts_until = 0;
    int64_t leases = 0;
    int64_t cases_in_row = 0;              // the newest leases, all of a case
    double lease_seconds = kLeaseSeconds;  // mean of the last ones
    double used = 0;                       // seconds, decayed to `used_at`
    double used_at = 0;
    std::map<Order, QueuedReplay> queue;

    using Place = std::map<Order, QueuedReplay>::const_iterator;
    // The queue in the order of turns, in stretches.
    std::vector<std::pair<Place, Place>> stretches() const;
  };
  struct Waiting {
    Worker worker;
    std::function<void()> wake;
  };
  using Wakes = std::vector<std::function<void()>>;

  static constexpr double kLeaseSeconds = 10;  // before one has ended
  static constexpr int64_t kCasesToAShadow = 2;
  static double used_for_share(const Run& run, double now);
  static bool may_enter(const Worker& worker, int64_t id, const Run& run);
  static bool may_try(const Worker& worker, const Run& run, const QueuedReplay& entry);
  bool any_for(const Worker& worker) const;
  std::function<void()> pop_waiter(const Run& run, const QueuedReplay& entry);
  void collect_wakes(const Run& run, Wakes& wakes);
  template <typename Chosen>
  void drop(int64_t run, const Chosen& chosen);

  mutable std::mutex mutex_;
  std::map<int64_t, Run> runs_;
  std::set<int64_t> with_work_;  // runs whose queue is not empty
  std::map<uint64_t, Waiting> waiting_;
  uint64_t next_ticket_ = 1;
};

}  // namespace gnomon
