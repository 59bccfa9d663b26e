#include "controller/notify/outbox.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>

#include "storage/ledger_audit.h"
#include "storage/ledger_outbox.h"

namespace gnomon::notify {
namespace {

uint32_t bit_named(const std::string& kind) {
  for (size_t i = 0; i < kConditionKinds.size(); ++i) {
    if (kConditionKinds[i].name == kind) return 1u << i;
  }
  return 0;
}

std::string names_to_json(const std::vector<std::string>& names) {
  return boost::json::serialize(boost::json::value_from(names));
}

std::vector<std::string> names_from_json(const std::string& json) {
  return boost::json::value_to<std::vector<std::string>>(boost::json::parse(json));
}

}  // namespace

Outbox::Outbox(Metrics& metrics, int64_t waiting_max)
    : metrics_(metrics), waiting_max_(waiting_max) {}

void Outbox::set_receivers(LedgerTransaction& transaction, const std::vector<Receiver>& receivers,
                           double now) {
  Connection& connection = transaction.connection();
  for (const std::string& name : ledger::waiting_receivers(connection)) {
    if (std::ranges::find(receivers, name, &Receiver::name) != receivers.end()) continue;
    const int64_t gone = ledger::delete_beyond(connection, name, 0);
    ledger::insert_audit(
        connection, now, std::nullopt, "notifications_dropped",
        fmt::format("{} of {}, who is not in the configuration any more", gone, name));
  }
  if (receivers.empty()) ledger::forget_conditions(connection);
  ledger::forget_waits(connection);
  std::vector<std::string> names;
  names.reserve(receivers.size());
  for (const Receiver& receiver : receivers) names.push_back(receiver.name);
  // At once, for the next write may be part of the same commit.
  transaction.on_rollback([this, before = receivers_] {
    receivers_ = before;
    notified_.clear();
  });
  receivers_ = receivers;
  notified_.clear();
  enqueue_open_conditions(transaction, now);
  transaction.on_commit(
      [this, names] { metrics_.update([&](DaemonNumbers& n) { keep_receivers(n, names); }); });
}

void Outbox::enqueue_open_conditions(LedgerTransaction& transaction, double now) {
  Connection& connection = transaction.connection();
  for (const ConditionRow& row : ledger::all_conditions(connection)) {
    const Names notified = names_from_json(row.told);
    const Alert alert = alert_from_json(row.alert);
    Names know;
    for (const Receiver& receiver : receivers_) {
      const bool knows = std::ranges::find(notified, receiver.name) != notified.end();
      if (!knows && !receiver.wants(alert)) continue;
      if (!knows) queue(transaction, receiver, row.run, alert, now);
      know.push_back(receiver.name);
    }
    if (know != notified)
      ledger::record_notified(connection, row.run, row.kind, names_to_json(know));
  }
}

void Outbox::queue(LedgerTransaction& transaction, const Receiver& receiver, int64_t run,
                   const Alert& alert, double now) {
  ledger::queue_message(transaction.connection(), receiver.name, run, alert.kind,
                        alert_to_json(alert), now);
  make_room(transaction, receiver.name, now);
  transaction.on_commit([this] {
    if (on_message_) on_message_();
  });
}

Outbox::Names Outbox::enqueue_for_all(LedgerTransaction& transaction, int64_t run,
                                      const Alert& alert, double now) {
  Names notified;
  for (const Receiver& receiver : receivers_) {
    if (!receiver.wants(alert)) continue;
    queue(transaction, receiver, run, alert, now);
    notified.push_back(receiver.name);
  }
  return notified;
}

void Outbox::enqueue(LedgerTransaction& transaction, int64_t run, const Alert& alert, double now) {
  enqueue_for_all(transaction, run, alert, now);
}

void Outbox::make_room(LedgerTransaction& transaction, const std::string& receiver, double now) {
  Connection& connection = transaction.connection();
  const ledger::Waiting waiting = ledger::waiting_for(connection, receiver);
  if (waiting.messages <= waiting_max_) return;
  const int64_t keep = std::max<int64_t>(1, waiting_max_ - kDroppedAtOnce);
  const int64_t gone = ledger::delete_beyond(connection, receiver, keep);
  const std::string what = fmt::format("the {} oldest of {}, for whom more than {} waited", gone,
                                       receiver, waiting_max_);
  ledger::insert_audit(connection, now, std::nullopt, "notifications_dropped", what);
  transaction.on_commit([this, receiver, gone, what] {
    spdlog::error("notifications were dropped: {}", what);
    metrics_.update([&](DaemonNumbers& n) { count_messages(n, receiver, "dropped", gone); });
  });
}

uint32_t& Outbox::notified_of(LedgerTransaction& transaction, int64_t run) {
  if (const auto found = notified_.find(run); found != notified_.end()) return found->second;
  uint32_t notified = 0;
  for (const std::string& kind : ledger::conditions_of(transaction.connection(), run)) {
    notified |= bit_named(kind);
  }
  // Whatever undoes this write, the next one starts from what the ledger has.
  transaction.on_rollback([this, run] { notified_.erase(run); });
  return notified_[run] = notified;
}

void Outbox::enqueue_conditions(LedgerTransaction& transaction,
                                const std::function<Subject()>& subject, int64_t run,
                                const decide::State& state, double now) {
  const uint32_t hold = conditions_that_hold(state);
  uint32_t& notified = notified_of(transaction, run);
  if (hold == notified) return;
  transaction.on_rollback([this, run] { notified_.erase(run); });
  Connection& connection = transaction.connection();
  for (size_t i = 0; i < kConditionKinds.size(); ++i) {
    const auto condition = static_cast<Condition>(1u << i);
    const std::string kind(kConditionKinds[i].name);
    if ((notified & ~hold & condition) != 0) end_condition(transaction, run, kind, now);
    if ((hold & ~notified & condition) != 0) {
      const Alert alert = condition_alert(subject(), condition, state, now);
      const Names names = enqueue_for_all(transaction, run, alert, now);
      ledger::begin_condition(connection,
                              {run, kind, now, alert_to_json(alert), names_to_json(names)});
    }
  }
  notified = hold;
}

void Outbox::end_condition(LedgerTransaction& transaction, int64_t run, const std::string& kind,
                           double now) {
  const auto row = ledger::end_condition(transaction.connection(), run, kind);
  if (!row) return;
  Alert alert = alert_from_json(row->alert);
  alert.ends_at = now;
  const Names notified = names_from_json(row->told);
  for (const Receiver& receiver : receivers_) {
    // Also to one that would not be notified of it by now: what it began is not left open.
    const bool knows = std::ranges::find(notified, receiver.name) != notified.end();
    if (knows) queue(transaction, receiver, run, alert, now);
  }
}

}  // namespace gnomon::notify
