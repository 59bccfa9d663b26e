// Rows of the ledger that no message is about: the decision core's events, what people did, and
// what receivers are still to be sent.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "protocol/records/member.h"

namespace gnomon {

// An event of the core; storage/schema.sql says where reports of steps stand.
struct EventRow {
  int64_t run = 0;
  int64_t seq = 0;
  double time = 0;
  std::string type;
  std::optional<int64_t> attempt = {};
  std::optional<int64_t> step = {};
  std::optional<std::string> body = {};

  static constexpr Row kRow = {"", "events"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = EventRow;
    v("run", &R::run, Member{});
    v("seq", &R::seq, Member{});
    v("time", &R::time, Member{.range = kTime});
    v("type", &R::type, Member{});
    v("attempt", &R::attempt, Member{});
    v("step", &R::step, Member{});
    v("body", &R::body, Member{.json = "object"});
  }
};

struct AuditRow {
  int64_t id = 0;
  double time = 0;
  std::optional<int64_t> run = {};
  std::string what;
  std::string detail;
  std::string principal;
  std::string hash;

  static constexpr Row kRow = {"AuditRow", "audit"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = AuditRow;
    v("id", &R::id, Member{});
    v("time", &R::time, Member{.range = rules::kTime});
    v("run", &R::run, Member{});
    v("what", &R::what, Member{.help = "conflicting_step, stale_lease, override, …"});
    v("detail", &R::detail, Member{});
    v("principal", &R::principal, Member{.help = "Who asked; empty: gnomond itself."});
    v("hash", &R::hash, Member{.help = "SHA-256 over the hash of the row before and this row."});
  }
};

// What a receiver is still to be sent.
struct Notification {
  int64_t id = 0;
  std::string receiver = {};
  int64_t run = 0;
  std::string kind = {};
  std::string delivery = {};
  double queued_at = 0;
  int64_t tries = 0;
  std::optional<double> next_try_at = {};
  std::optional<std::string> last_error = {};

  static constexpr Row kRow = {"NotificationRow", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Notification;
    v("id", &R::id, Member{});
    v("receiver", &R::receiver, Member{.help = "By its name in the configuration."});
    v("run", &R::run, Member{});
    v("kind", &R::kind,
      Member{.help = "alarm, action, held, …; docs/notifications.md has them all."});
    v("delivery", &R::delivery, Member{.help = "The header X-Gnomon-Delivery of each try."});
    v("queued_at", &R::queued_at, Member{.range = kTime});
    v("tries", &R::tries, Member{.help = "That failed."});
    v("next_try_at", &R::next_try_at, Member{.help = "Null: at once."});
    v("last_error", &R::last_error, Member{});
  }
};

struct OutboxRow : Notification {
  std::string alert = {};

  static constexpr Row kRow = {"", "outbox"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    Notification::describe(v);
    v("alert", &OutboxRow::alert, Member{.json = "object"});
  }
};

// What has begun and not ended, as receivers were notified.
struct ConditionRow {
  int64_t run = 0;
  std::string kind;
  double since = 0;
  std::string alert;
  std::string told;

  static constexpr Row kRow = {"", "conditions"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = ConditionRow;
    v("run", &R::run, Member{});
    v("kind", &R::kind, Member{});
    v("since", &R::since, Member{.range = rules::kTime});
    v("alert", &R::alert, Member{.json = "object"});
    v("told", &R::told, Member{.json = "strings"});
  }
};

}  // namespace gnomon
