// Delivers what waits in the outbox, on a thread of its own: of a run in order, several runs and
// receivers at a time, each receiver at its own pace. A message is deleted when its receiver has
// said that it has it, so that a crash between the two sends it once more.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "controller/metrics/metrics.h"
#include "controller/notify/outbox.h"
#include "controller/notify/receiver.h"
#include "controller/notify/retry.h"
#include "controller/notify/sender.h"
#include "storage/ledger.h"
#include "storage/ledger_outbox.h"

namespace gnomon::notify {

struct NotifierSettings {
  std::vector<Receiver> receivers;
  std::string external_url;  // where people reach the page; may be empty
  bool operator==(const NotifierSettings&) const = default;
};

class Notifier {
 public:
  // `now` in seconds since the epoch, the clock of the ledger's rows; `wall_now` the same as others
  // see it, for what is sent; `steady_now` in seconds of a clock that never jumps. When it returns,
  // the outbox knows the receivers. Throws what a ledger write throws.
  Notifier(Ledger& ledger, Outbox& outbox, Metrics& metrics, NotifierSettings settings,
           std::function<double()> now, std::function<double()> wall_now,
           std::function<double()> steady_now);
  // Waits a moment for what is under way; what was not answered by then is sent again by the next
  // one. The ledger must still be there.
  ~Notifier();
  Notifier(const Notifier&) = delete;
  Notifier& operator=(const Notifier&) = delete;

  // Takes effect soon. From any thread.
  void configure(NotifierSettings settings);

 private:
  // What there is of one receiver.
  struct Lane {
    explicit Lane(Receiver r)
        : receiver(std::move(r)),
          pace(receiver.retry_first_seconds, receiver.retry_longest_seconds) {}
    Receiver receiver;
    Pace pace;
    double not_before = 0;  // steady clock seconds
    int64_t after_run = 0;  // where the next look begins
    int under_way = 0;
    std::set<int64_t> busy;  // runs with a message under way, or whose end is not written down yet
  };
  // What became of a message, to be written down.
  struct End {
    OutboxRow row;
    Fate fate = Fate::kDelivered;
    double next_try_at = 0;  // seconds since the epoch
    std::string why;
  };

  void run();
  // One round; returns the seconds until there may be something to do.
  double work();
  void apply_settings();
  void write_ends();
  void write_end(LedgerTransaction& transaction, const End& end);
  void tidy();
  double send_from(Lane& lane);
  double send_messages(Lane& lane);
  void send(Lane& lane, const OutboxRow& row);
  void handle(const Answer& answer);
  void finish();

  Ledger& ledger_;
  Outbox& outbox_;
  Metrics& metrics_;
  std::function<double()> now_;
  std::function<double()> wall_now_;
  std::function<double()> steady_now_;

  std::mutex mutex_;
  NotifierSettings wanted_;
  bool settings_are_new_ = false;
  bool stopping_ = false;

  // The thread's own.
  Sender sender_;
  std::string external_url_;
  std::map<std::string, Lane> lanes_;
  std::map<uint64_t, OutboxRow> sent_;  // by ticket
  std::vector<End> ends_;
  double tidy_at_ = 0;
  bool ledger_failed_ = false;  // said once

  std::thread thread_;
};

}  // namespace gnomon::notify
