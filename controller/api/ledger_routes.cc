#include <fmt/format.h>

#include "controller/api/listing.h"
#include "controller/api/services.h"
#include "controller/backups/backups.h"
#include "controller/supervisor/ending.h"
#include "storage/json_rows.h"
#include "storage/view_queries.h"

namespace gnomon {
namespace {

constexpr int64_t kAuditRowsMax = 100'000;
constexpr auto kLook = std::chrono::seconds(15);

// What went wrong with a backup, as the client is told: a full disk is 507, a ledger that is gone
// 503, all else 500. The log has it already.
[[noreturn]] void refuse_failed(const Backups::Outcome& outcome) {
  int status = 500;
  std::string why;
  try {
    std::rethrow_exception(outcome.error);
  } catch (const LedgerLost&) {
    throw;
  } catch (const LedgerError& error) {
    if (error.disk_full()) status = 507;
    why = error.what();
  } catch (const std::exception& error) {
    why = error.what();
  }
  throw HttpError(status, "No backup was made", why, "the same request when that is mended");
}

Response post_backup(Services& services, Exchange& exchange) {
  Backups& backups = *services.backups;
  const int64_t number = backups.start();
  while (true) {
    const uint64_t seen = backups.ended().count();
    if (std::optional<Backups::Outcome> outcome = backups.outcome(number)) {
      if (outcome->error) refuse_failed(*outcome);
      const BackupReport& report = outcome->report;
      return json_response(fmt::format(
          R"({{"name":{},"bytes":{},"seconds":{:.3f},"audit_rows":{},"audit_head":"{}:{}"}})",
          string_as_json(report.file.filename().string()), report.bytes, report.seconds,
          report.audit.rows, report.audit.last_id, report.audit.head));
    }
    exchange.wait(backups.ended().after(seen), Exchange::Clock::now() + kLook);
    if (exchange.over()) {
      throw HttpError(503, "The request has ended", "the backup continues, or ends with the daemon",
                      "a look at gnomon_ledger_backups_total");
    }
  }
}

// The newest rows of all runs or of one, oldest first.
Response list_audit(Exchange& exchange, const Request& request) {
  const int64_t newest = query_integer(request, "newest");
  const int64_t run =
      query_given(request, "run") ? parse_run_id(query_text(request, "run")) : int64_t{0};
  std::string json;
  exchange.read([&](Connection& connection) {
    Query rows = run == 0 ? connection.query(views::kAuditNewest, newest)
                          : connection.query(views::kAuditNewestOfRun, newest, run);
    json = rows_as_json(rows);
  });
  return json_response(json);
}

// What waits for its receiver, the oldest first.
Response list_notifications(Exchange& exchange, const Request& request) {
  Page page(query_integer(request, "limit"));
  exchange.read([&](Connection& connection) {
    Query rows = connection.query(views::kNotifications, query_integer(request, "after"),
                                  page.rows_wanted());
    page.add(rows, "id");
  });
  const std::string next = fmt::format("{}", page.key());
  return std::move(page).response(request, "after", next);
}

// One write for each piece, so that reports get between. Whatever ends this before the run is gone,
// the next request goes on.
Response delete_all_of_run(Services& services, Exchange& exchange, const Request& request) {
  const int64_t run = parse_run_id(request.arguments[0]);
  bool gone = false;
  while (!gone) {
    if (services.stopping) {
      throw HttpError(503, "The daemon is stopping", "a part of the run is deleted",
                      "the same request later, which goes on");
    }
    audited_write(exchange, services, [&](LedgerTransaction& transaction) {
      gone = delete_run({services.runs, transaction}, run);
      services.leases.end_leases_of(transaction, run);
    });
  }
  return {204, "", "", {}, false};
}

}  // namespace

std::vector<Route> ledger_routes(Services& s) {
  using E = Exchange;
  return {
      {"POST",
       "/v1/backups",
       {BodyKind::kJson, 4096},
       [&s](E& e, const Request&) { return post_backup(s, e); },
       false},
      {"DELETE",
       "/v1/runs/{run}",
       {},
       [&s](E& e, const Request& request) { return delete_all_of_run(s, e, request); },
       false},
      {"GET",
       "/v1/audit",
       {},
       [](E& e, const Request& request) { return list_audit(e, request); },
       true,
       {integer_parameter("newest", "How many.", 1, kAuditRowsMax, 1000),
        text_parameter("run", "Rows of this run alone, as `run-3` or `3`.")}},
      {"GET",
       "/v1/notifications",
       {},
       [](E& e, const Request& request) { return list_notifications(e, request); },
       true,
       {integer_parameter("after", "The `id` behind which the list begins.", 0, INT64_MAX, 0),
        limit_parameter()},
       "NotificationRow"},
  };
}

}  // namespace gnomon
