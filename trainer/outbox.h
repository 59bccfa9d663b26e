// What the training loop and the checkpointer tell the controller goes through here into the spool.
// When the spool or its disk is full, this decides who waits, what is kept in memory and what is
// dropped.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "protocol/records.h"
#include "trainer/shutdown.h"
#include "trainer/spool.h"

namespace gnomon {

// What becomes of step reports that find no room.
enum class FullSpool {
  kWait,       // the caller waits, training with it
  kDropSteps,  // they are dropped and counted; a notice "reports_dropped" follows once there is
               // room
};

// Thread-safe. Records keep their order: behind one that is kept in memory no other is stored.
class Outbox {
 public:
  // With kDropSteps a share of the spool is kept free of step reports, for everything else. The
  // references must outlive the outbox.
  Outbox(Spool& spool, FullSpool policy, Shutdown& shutdown, spdlog::logger& log);

  // Stores a step report, or acts by the policy. Throws Interrupted.
  void step(const StepReport& report);
  // Stores anything else. Without room: under kDropSteps it is kept in memory, up to a bound behind
  // which it waits; under kWait it waits. Throws Interrupted.
  void record(const std::string& target, const std::string& body);
  // Stores what may be lost. Never waits: false, and nothing stored, when half of the spool
  // would not stay free for everything else, or when something waits already.
  bool offer(const std::string& target, const std::string& body);
  // Never waits: without room it is kept in memory.
  void notice(TrainerNotice notice);

  // Stores what is kept in memory and reports dropped steps, as far as there is room. Returns
  // whether all of it is stored.
  bool store_kept();
  // Waits until store_kept() is done. Throws Interrupted.
  void settle();

  // Bodies of all undelivered records with this target, in the spool or in memory.
  std::vector<std::string> pending(const std::string& target) const;
  int64_t steps_dropped() const;

 private:
  // Consecutive step reports of one attempt.
  struct Dropped {
    int64_t attempt = 0;
    int64_t first = 0;
    int64_t last = 0;
  };

  bool try_record(const std::string& target, const std::string& body);
  bool store_kept_locked();
  bool report_dropped_locked(int64_t bytes_kept_free);
  void drop_locked(const StepReport& report);
  template <typename Try>
  void wait_for_room(int64_t step, Try try_once);
  std::string why_full() const;

  Spool& spool_;
  const FullSpool policy_;
  const int64_t reserve_bytes_;  // step reports leave them free
  Shutdown& shutdown_;
  spdlog::logger& log_;

  mutable std::mutex mutex_;
  std::deque<std::pair<std::string, std::string>> kept_;  // target, body
  std::vector<Dropped> dropped_;                          // not reported yet
  int64_t steps_dropped_ = 0;
  Spool::Outcome last_failure_ = Spool::Outcome::kFull;
};

}  // namespace gnomon
