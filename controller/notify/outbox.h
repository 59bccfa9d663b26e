// What receivers are to be notified, written in the same write as what it tells of: a message is
// there exactly when its cause is. Without receivers nothing is written. Everything here runs on
// the ledger's writer thread, inside a write.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "controller/metrics/metrics.h"
#include "controller/notify/receiver.h"
#include "storage/ledger.h"

namespace gnomon::notify {

// Messages kept for a receiver that takes nothing. Beyond it the oldest are dropped, so many at
// once that the audit log does not get a row for each.
inline constexpr int64_t kWaitingMax = 10'000;
inline constexpr int64_t kDroppedAtOnce = 100;

class Outbox {
 public:
  explicit Outbox(Metrics& metrics, int64_t waiting_max = kWaitingMax);

  // Called after a commit that left messages. Before the first one.
  void on_message(std::function<void()> action) { on_message_ = std::move(action); }

  // From now on these are notified, and may be tried at once; receivers
  // that were not notified of an open condition get it now. Deletes messages of other receivers.
  // `now` in seconds since the epoch, here and below.
  void set_receivers(LedgerTransaction& transaction, const std::vector<Receiver>& receivers,
                     double now);
  bool anybody() const { return !receivers_.empty(); }

  void enqueue(LedgerTransaction& transaction, int64_t run, const Alert& alert, double now);
  // Enqueues the conditions that have begun or ended since the last call for this run; the end for
  // the receivers of the beginning. Cheap when nothing has.
  void enqueue_conditions(LedgerTransaction& transaction, const std::function<Subject()>& subject,
                          int64_t run, const decide::State& state, double now);

 private:
  using Names = std::vector<std::string>;
  void queue(LedgerTransaction& transaction, const Receiver& receiver, int64_t run,
             const Alert& alert, double now);
  Names enqueue_for_all(LedgerTransaction& transaction, int64_t run, const Alert& alert,
                        double now);
  void enqueue_open_conditions(LedgerTransaction& transaction, double now);
  void end_condition(LedgerTransaction& transaction, int64_t run, const std::string& kind,
                     double now);
  uint32_t& notified_of(LedgerTransaction& transaction, int64_t run);
  void make_room(LedgerTransaction& transaction, const std::string& receiver, double now);

  Metrics& metrics_;
  int64_t waiting_max_;
  std::vector<Receiver> receivers_;
  std::function<void()> on_message_;
  std::map<int64_t, uint32_t> notified_;  // the conditions of a run, as the ledger has them
};

}  // namespace gnomon::notify
