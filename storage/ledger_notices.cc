#include "storage/ledger_notices.h"

namespace gnomon::ledger {
namespace {

int64_t next_number(Query query) { return query.next() ? query.integer(0) + 1 : 1; }

}  // namespace

std::optional<int64_t> insert_notice(Connection& connection, int64_t run,
                                     const TrainerNotice& notice, double now) {
  int64_t number = next_number(
      connection.query("SELECT coalesce(max(notice), 0) FROM notices WHERE run = ?", run));
  const int inserted =
      insert<NoticeRow, "INSERT",
             "ON CONFLICT (run, kind, attempt, step, noticed_at, text) DO NOTHING">(
          connection, {run, number, notice.attempt, notice.step, NoticeKind::on_record(notice.kind),
                       notice.text, notice.plan_version, notice.time, now});
  if (inserted == 0) {
    return std::nullopt;
  }
  connection.execute("DELETE FROM notices WHERE run = ? AND notice <= ?", run,
                     number - kNoticesMax);
  return number;
}

int64_t insert_override(Connection& connection, OverrideRow row) {
  row.override = next_number(
      connection.query("SELECT coalesce(max(override), 0) FROM overrides WHERE run = ?", row.run));
  insert(connection, row);
  return row.override;
}

}  // namespace gnomon::ledger
