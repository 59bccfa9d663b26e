#include "trainer/outbox.h"

#include <fmt/format.h>

#include <chrono>

#include "base/wall_clock.h"
#include "protocol/json.h"

namespace gnomon {
namespace {

constexpr int64_t kReserveShare = 4;  // of the spool
// More than this must be free before a gap is reported and steps are stored again, so that a spool
// that is emptied slowly does not alternate between the two.
constexpr int64_t kRoomShare = 8;
// What may be lost keeps this much free, so that step reports and the rest find room behind it.
constexpr int64_t kOfferShare = 2;
constexpr size_t kKeptMax = 10'000;

}  // namespace

Outbox::Outbox(Spool& spool, FullSpool policy, Shutdown& shutdown, spdlog::logger& log)
    : spool_(spool),
      policy_(policy),
      reserve_bytes_(policy == FullSpool::kDropSteps ? spool.bytes_max() / kReserveShare : 0),
      shutdown_(shutdown),
      log_(log) {}

std::string Outbox::why_full() const {
  return last_failure_ == Spool::Outcome::kFull
             ? fmt::format("the spool is full ({} of {} bytes, controller.spool_bytes_max)",
                           spool_.bytes(), spool_.bytes_max())
             : "the disk of the spool is full";
}

// Calls `try_once` under the lock until it returns true.
template <typename Try>
void Outbox::wait_for_room(int64_t step, Try try_once) {
  constexpr std::chrono::milliseconds kRetry(100);
  constexpr int kRetriesPerMessage = 300;
  const std::string at = step < 0 ? "" : fmt::format(" at step {}", step);
  for (int tries = 0;; ++tries) {
    std::string why;
    {
      std::lock_guard lock(mutex_);
      if (try_once()) {
        if (tries > 0) log_.info("room in the spool again: going on{}", at);
        return;
      }
      why = why_full();
    }
    if (tries % kRetriesPerMessage == 0) {
      log_.error("{}: TRAINING WAITS{} until there is room again", why, at);
    }
    if (shutdown_.wait_for(kRetry)) {
      throw Interrupted(fmt::format(
          "stopping{} although {}: the next attempt repeats the steps since the last checkpoint, "
          "and reports them",
          at, why));
    }
  }
}

void Outbox::step(const StepReport& report) {
  const std::string body = to_json(report);
  if (policy_ == FullSpool::kWait) {
    return wait_for_room(report.step, [&] { return try_record("steps", body); });
  }
  std::lock_guard lock(mutex_);
  const int64_t room = reserve_bytes_ + spool_.bytes_max() / kRoomShare;
  if (!store_kept_locked() || !report_dropped_locked(room)) return drop_locked(report);
  last_failure_ = spool_.append("steps", body, reserve_bytes_);
  if (last_failure_ != Spool::Outcome::kWritten) drop_locked(report);
}

void Outbox::drop_locked(const StepReport& report) {
  ++steps_dropped_;
  if (!dropped_.empty() && dropped_.back().attempt == report.attempt &&
      dropped_.back().last + 1 == report.step) {
    ++dropped_.back().last;
    return;
  }
  log_.error(
      "{}: STEP REPORTS ARE DROPPED from step {} on until there is room; training goes on "
      "(controller.on_loss = \"continue\")",
      why_full(), report.step);
  dropped_.push_back({report.attempt, report.step, report.step});
}

// True when there is nothing left to tell.
bool Outbox::report_dropped_locked(int64_t bytes_kept_free) {
  while (!dropped_.empty()) {
    const Dropped& gap = dropped_.front();
    TrainerNotice notice;
    notice.attempt = gap.attempt;
    notice.step = gap.last;
    notice.kind = "reports_dropped";
    notice.text = fmt::format(
        "the reports of steps {} to {} of attempt {} were dropped because there was no room for "
        "them",
        gap.first, gap.last, gap.attempt);
    notice.time = now_seconds();
    last_failure_ = spool_.append("notices", to_json(notice), bytes_kept_free);
    if (last_failure_ != Spool::Outcome::kWritten) return false;
    log_.warn("room for reports again: {}", notice.text);
    dropped_.erase(dropped_.begin());
  }
  return true;
}

// Under the lock.
bool Outbox::try_record(const std::string& target, const std::string& body) {
  if (!store_kept_locked()) return false;
  last_failure_ = spool_.append(target, body);
  return last_failure_ == Spool::Outcome::kWritten;
}

void Outbox::record(const std::string& target, const std::string& body) {
  wait_for_room(-1, [&] {
    if (try_record(target, body)) return true;
    if (policy_ == FullSpool::kWait || kept_.size() >= kKeptMax) return false;
    kept_.emplace_back(target, body);
    return true;
  });
}

bool Outbox::offer(const std::string& target, const std::string& body) {
  std::lock_guard lock(mutex_);
  if (!store_kept_locked() || !dropped_.empty()) return false;
  return spool_.append(target, body, spool_.bytes_max() / kOfferShare) == Spool::Outcome::kWritten;
}

void Outbox::notice(TrainerNotice notice) {
  notice.time = now_seconds();
  const std::string body = to_json(notice);
  std::lock_guard lock(mutex_);
  if (try_record("notices", body)) return;
  if (kept_.size() >= kKeptMax) {
    log_.error("a notice is dropped, there is no room for it: {}", notice.text);
    return;
  }
  kept_.emplace_back("notices", body);
}

// True when nothing is kept any more.
bool Outbox::store_kept_locked() {
  while (!kept_.empty()) {
    last_failure_ = spool_.append(kept_.front().first, kept_.front().second);
    if (last_failure_ != Spool::Outcome::kWritten) return false;
    kept_.pop_front();
  }
  return true;
}

bool Outbox::store_kept() {
  std::lock_guard lock(mutex_);
  return store_kept_locked() && report_dropped_locked(0);
}

void Outbox::settle() {
  wait_for_room(-1, [this] { return store_kept_locked() && report_dropped_locked(0); });
}

std::vector<std::string> Outbox::pending(const std::string& target) const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> bodies;
  for (const auto& [kept_target, body] : kept_) {
    if (kept_target == target) bodies.push_back(body);
  }
  // The spool last: what is delivered meanwhile is then in the controller's answer.
  for (std::string& body : spool_.pending(target)) bodies.push_back(std::move(body));
  return bodies;
}

int64_t Outbox::steps_dropped() const {
  std::lock_guard lock(mutex_);
  return steps_dropped_;
}

}  // namespace gnomon
