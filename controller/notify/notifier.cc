#include "controller/notify/notifier.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/failpoint.h"
#include "base/thread_name.h"
#include "controller/notify/body.h"
#include "storage/ledger_audit.h"

namespace gnomon::notify {
namespace {

constexpr int kConnectionsMax = 4;  // of one receiver
constexpr int64_t kRunsAtOnce = 256;
constexpr int64_t kGivenUpAtOnce = 1000;
constexpr double kTidySeconds = 1;
constexpr double kLedgerPauseSeconds = 1;
constexpr double kIdleSeconds = 30;
constexpr double kStopSeconds = 0.5;
constexpr int kFailuresLogged = 3;  // in a row: fewer are no news

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(
      static_cast<int64_t>(std::clamp(seconds, 0.0, kIdleSeconds) * 1000) + 1);
}

}  // namespace

Notifier::Notifier(Ledger& ledger, Outbox& outbox, Metrics& metrics, NotifierSettings settings,
                   std::function<double()> now, std::function<double()> wall_now,
                   std::function<double()> steady_now)
    : ledger_(ledger),
      outbox_(outbox),
      metrics_(metrics),
      now_(std::move(now)),
      wall_now_(std::move(wall_now)),
      steady_now_(std::move(steady_now)),
      wanted_(std::move(settings)),
      settings_are_new_(true) {
  apply_settings();
  outbox_.on_message([this] { sender_.wake(); });
  thread_ = std::thread([this] { run(); });
}

Notifier::~Notifier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  sender_.wake();
  thread_.join();
  try {
    ledger_.write([this](LedgerTransaction&) { outbox_.on_message(nullptr); });
  } catch (const Error& error) {
    spdlog::warn("the end of the notifications was not written down: {}", error.what());
  }
}

void Notifier::configure(NotifierSettings settings) {
  {
    const std::lock_guard lock(mutex_);
    wanted_ = std::move(settings);
    settings_are_new_ = true;
  }
  sender_.wake();
}

void Notifier::run() {
  name_thread("notifier");
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) break;
    }
    double pause = kLedgerPauseSeconds;
    try {
      pause = work();
      ledger_failed_ = false;
    } catch (const std::exception& error) {
      if (!ledger_failed_) spdlog::warn("notifications wait for the ledger: {}", error.what());
      ledger_failed_ = true;
    }
    for (const Answer& answer : sender_.wait(milliseconds(pause))) handle(answer);
  }
  finish();
}

double Notifier::work() {
  write_ends();
  apply_settings();
  tidy();
  double pause = lanes_.empty() ? kIdleSeconds : kTidySeconds;
  for (auto& [name, lane] : lanes_) pause = std::min(pause, send_from(lane));
  return pause;
}

void Notifier::apply_settings() {
  NotifierSettings wanted;
  {
    const std::lock_guard lock(mutex_);
    if (!settings_are_new_) return;
    wanted = wanted_;
  }
  ledger_.write([&](LedgerTransaction& transaction) {
    outbox_.set_receivers(transaction, wanted.receivers, now_());
  });
  // Another address or secret may be the cure of a failure: all begin anew.
  lanes_.clear();
  for (const Receiver& receiver : wanted.receivers) lanes_.emplace(receiver.name, Lane(receiver));
  for (const auto& [ticket, row] : sent_) {
    const auto lane = lanes_.find(row.receiver);
    if (lane == lanes_.end()) continue;
    ++lane->second.under_way;
    lane->second.busy.insert(row.run);
  }
  external_url_ = wanted.external_url;
  tidy_at_ = 0;
  const std::lock_guard lock(mutex_);
  settings_are_new_ = wanted_ != wanted;
}

void Notifier::write_end(LedgerTransaction& transaction, const End& end) {
  Connection& connection = transaction.connection();
  const OutboxRow& row = end.row;
  const auto count_on_commit = [&](const char* outcome) {
    transaction.on_commit([this, name = row.receiver, outcome] {
      metrics_.update([&](DaemonNumbers& n) { count_messages(n, name, outcome); });
    });
  };
  if (end.fate == Fate::kAgain) {
    ledger::note_failed_try(connection, row.id, end.next_try_at, end.why);
    return count_on_commit("failed");
  }
  const bool was_there = ledger::delete_message(connection, row.id);
  if (end.fate == Fate::kDelivered) {
    return count_on_commit("delivered");
  }
  if (!was_there) return;
  const std::string what = fmt::format("message {} ({}) was refused by {}: {}", row.delivery,
                                       row.kind, row.receiver, end.why);
  ledger::insert_audit(connection, now_(), row.run, "notifications_dropped", what);
  transaction.on_commit([what] { spdlog::error("a notification was dropped: {}", what); });
  count_on_commit("failed");
  count_on_commit("dropped");
}

void Notifier::write_ends() {
  if (ends_.empty()) return;
  failpoint::reached(failpoint::Point::kNotifyDelivered);
  ledger_.write([this](LedgerTransaction& transaction) {
    for (const End& end : ends_) write_end(transaction, end);
  });
  for (const End& end : ends_) {
    if (const auto lane = lanes_.find(end.row.receiver); lane != lanes_.end()) {
      lane->second.busy.erase(end.row.run);
    }
  }
  ends_.clear();
}

// Gives up what has waited too long, and shows what waits.
void Notifier::tidy() {
  if (steady_now_() < tidy_at_ || lanes_.empty()) return;
  tidy_at_ = steady_now_() + kTidySeconds;
  std::map<std::string, ledger::Waiting> waiting;
  ledger_.read([&](Connection& connection) {
    for (const auto& [name, lane] : lanes_) waiting[name] = ledger::waiting_for(connection, name);
  });
  for (const auto& [name, queue] : waiting) {
    metrics_.update([&, &name = name, &queue = queue](DaemonNumbers& n) {
      const auto found = n.receivers.find(name);
      if (found == n.receivers.end()) return;
      found->second.waiting = queue.messages;
      found->second.waiting_since = queue.since;
    });
    const double before = now_() - lanes_.at(name).receiver.give_up_hours * 3600;
    if (queue.messages == 0 || queue.since >= before) continue;
    ledger_.write([&, &name = name](LedgerTransaction& transaction) {
      const int64_t gone =
          ledger::delete_waiting_since(transaction.connection(), name, before, kGivenUpAtOnce);
      const std::string what = fmt::format("{} of {}, who has not taken them for {} hours", gone,
                                           name, lanes_.at(name).receiver.give_up_hours);
      ledger::insert_audit(transaction.connection(), now_(), std::nullopt, "notifications_dropped",
                           what);
      transaction.on_commit([this, name, gone, what] {
        spdlog::error("notifications were dropped: {}", what);
        metrics_.update([&](DaemonNumbers& n) { count_messages(n, name, "dropped", gone); });
      });
    });
    tidy_at_ = 0;
  }
}

// Returns the seconds until this receiver may be sent something that is known of.
double Notifier::send_from(Lane& lane) {
  const double wait = lane.not_before - steady_now_();
  return wait > 0 ? wait : send_messages(lane);
}

double Notifier::send_messages(Lane& lane) {
  // One that does not answer is asked by one message at a time.
  const int most = lane.pace.failing() ? 1 : kConnectionsMax;
  if (lane.under_way >= most) return kIdleSeconds;
  std::vector<OutboxRow> rows;
  ledger_.read([&](Connection& connection) {
    rows = ledger::first_messages(connection, lane.receiver.name, lane.after_run, kRunsAtOnce);
    if (std::ssize(rows) == kRunsAtOnce || lane.after_run == 0) return;
    // Round to the runs before the one where this look began.
    const auto others =
        ledger::first_messages(connection, lane.receiver.name, 0, kRunsAtOnce - std::ssize(rows));
    for (const OutboxRow& row : others) {
      if (row.run <= lane.after_run) rows.push_back(row);
    }
  });
  const double time = now_();
  double pause = kIdleSeconds;
  for (const OutboxRow& row : rows) {
    if (lane.under_way >= most) break;
    lane.after_run = row.run;
    if (lane.busy.contains(row.run)) continue;
    const double wait = row.next_try_at.value_or(0) - time;
    // A clock that was set back must not keep a message longer than a failure would.
    if (wait > 0 && wait <= std::max(lane.receiver.retry_longest_seconds, kRetryAfterMaxSeconds)) {
      pause = std::min(pause, wait);
      continue;
    }
    send(lane, row);
  }
  return pause;
}

void Notifier::send(Lane& lane, const OutboxRow& row) {
  const double time = wall_now_();
  std::string body;
  try {
    body =
        webhook_body(alert_from_json(row.alert), lane.receiver.name, row.delivery, external_url_);
  } catch (const std::exception& error) {
    ends_.push_back({row, Fate::kRefused, 0, fmt::format("it cannot be read: {}", error.what())});
    lane.busy.insert(row.run);
    return;
  }
  sent_[sender_.post(lane.receiver, body, row.delivery, time)] = row;
  lane.busy.insert(row.run);
  ++lane.under_way;
}

void Notifier::handle(const Answer& answer) {
  const auto found = sent_.find(answer.ticket);
  GNOMON_ASSERT(found != sent_.end());
  const OutboxRow row = std::move(found->second);
  sent_.erase(found);
  const Fate fate = fate_of(answer.status);
  End end{row, fate, 0, answer.words()};
  if (const auto known = lanes_.find(row.receiver); known != lanes_.end()) {
    Lane& lane = known->second;
    --lane.under_way;
    if (fate == Fate::kAgain) {
      const double wait = lane.pace.failed(answer.retry_after);
      if (lane.pace.failures() == kFailuresLogged) {
        spdlog::warn("{} does not take notifications: {}", row.receiver, answer.words());
      }
      lane.not_before = steady_now_() + wait;
      end.next_try_at =
          now_() + std::max(wait, wait_after(end.row.tries + 1, lane.receiver.retry_first_seconds,
                                             lane.receiver.retry_longest_seconds));
    } else {
      if (lane.pace.failures() >= kFailuresLogged)
        spdlog::info("{} takes notifications again", row.receiver);
      lane.pace.succeeded();
    }
  }
  ends_.push_back(std::move(end));
}

// What was begun may be answered yet; each that is not is sent twice.
void Notifier::finish() {
  const double until = steady_now_() + kStopSeconds;
  while (sender_.under_way() > 0 && steady_now_() < until) {
    for (const Answer& answer : sender_.wait(milliseconds(until - steady_now_()))) handle(answer);
  }
  try {
    write_ends();
  } catch (const std::exception& error) {
    spdlog::warn("what became of {} notifications was not written down, they are sent again: {}",
                 ends_.size(), error.what());
  }
}

}  // namespace gnomon::notify
