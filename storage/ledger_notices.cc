#include "storage/ledger_notices.h"

namespace gnomon::ledger {
namespace {

int64_t next_number(Query query) { return query.next() ? query.integer(0) + 1 : 1; }

}  // namespace

std::optional<int64_t> insert_notice(Connection& connection, int64_t run,
                                     const TrainerNotice& notice, double now) {
  int64_t number = next_number(
      connection.query("SELECT coalesce(max(notice), 0) FROM notices WHERE run = ?", run));
  int inserted = connection.execute(
      "INSERT INTO notices (run, notice, attempt, step, kind, text, plan_version, noticed_at, "
      "reported_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) "
      "ON CONFLICT (run, kind, attempt, step, noticed_at, text) DO NOTHING",
      run, number, notice.attempt, notice.step, notice.kind, notice.text, notice.plan_version,
      notice.time, now);
  if (inserted == 0) {
    return std::nullopt;
  }
  connection.execute("DELETE FROM notices WHERE run = ? AND notice <= ?", run,
                     number - kNoticesMax);
  return number;
}

int64_t insert_override(Connection& connection, int64_t run, const OverrideRow& row) {
  int64_t number = next_number(
      connection.query("SELECT coalesce(max(override), 0) FROM overrides WHERE run = ?", run));
  const OverrideRequest& request = row.request;
  connection.execute(
      "INSERT INTO overrides (run, override, kind, plan, mode, owner, reason, asked_at, "
      "expires_at, decision, directive) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
      run, number, request.kind, request.plan, request.mode, request.owner, request.reason,
      row.asked_at, row.expires_at, row.decision, row.directive);
  return number;
}

}  // namespace gnomon::ledger
