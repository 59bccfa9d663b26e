#include "controller/notify/outbox.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <bit>

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
  for (const Receiver& receiver : receivers) names.push_back(receiver.name);
  transaction.on_commit([this, receivers, names] {
    receivers_ = receivers;
    told_.clear();
    metrics_.notifications().set_receivers(names);
  });
}

void Outbox::tell(LedgerTransaction& transaction, int64_t run, const Alert& alert, double now) {
  Connection& connection = transaction.connection();
  std::string json;
  for (const Receiver& receiver : receivers_) {
    if (!receiver.wants(alert)) continue;
    if (json.empty()) json = alert_to_json(alert);
    ledger::queue_message(connection, receiver.name, run, alert.kind, json, now);
    make_room(transaction, receiver.name, now);
  }
  if (json.empty()) return;
  transaction.on_commit([this] {
    if (on_message_) on_message_();
  });
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
    metrics_.notifications().dropped(receiver, gone);
  });
}

uint32_t& Outbox::told_of(LedgerTransaction& transaction, int64_t run) {
  if (const auto found = told_.find(run); found != told_.end()) return found->second;
  uint32_t told = 0;
  for (const std::string& kind : ledger::conditions_of(transaction.connection(), run)) {
    told |= bit_named(kind);
  }
  // Whatever undoes this write, the next one starts from what the ledger has.
  transaction.on_rollback([this, run] { told_.erase(run); });
  return told_[run] = told;
}

void Outbox::tell_conditions(LedgerTransaction& transaction,
                             const std::function<Subject()>& subject, int64_t run,
                             const decide::State& state, double now) {
  const uint32_t hold = conditions_that_hold(state);
  uint32_t& told = told_of(transaction, run);
  if (hold == told) return;
  transaction.on_rollback([this, run] { told_.erase(run); });
  Connection& connection = transaction.connection();
  for (size_t i = 0; i < kConditionKinds.size(); ++i) {
    const auto condition = static_cast<Condition>(1u << i);
    const std::string kind(kConditionKinds[i].name);
    if ((told & ~hold & condition) != 0) {
      if (const auto row = ledger::end_condition(connection, run, kind)) {
        Alert alert = alert_from_json(row->alert);
        alert.ends_at = now;
        tell(transaction, run, alert, now);
      }
    }
    if ((hold & ~told & condition) != 0) {
      const Alert alert = condition_alert(subject(), condition, state, now);
      ledger::begin_condition(connection, {run, kind, now, alert_to_json(alert)});
      tell(transaction, run, alert, now);
    }
  }
  told = hold;
}

}  // namespace gnomon::notify
