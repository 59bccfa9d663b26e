#include <fmt/format.h>

#include <algorithm>

#include "base/version.h"
#include "controller/api/encoding.h"
#include "controller/api/services.h"
#include "storage/json_rows.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_migrations.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

// Runs one readiness check and describes it as JSON; to a stranger without paths and the like.
std::string check(const char* name, bool stranger, bool& ready,
                  const std::function<void()>& probe) {
  std::string error;
  try {
    probe();
  } catch (const std::exception& failure) {
    error = stranger ? "needs a token; see gnomond's log" : failure.what();
    ready = false;
  }
  return fmt::format(R"({{"name":"{}","ok":{},"error":{}}})", name, error.empty(),
                     error.empty() ? "null" : string_as_json(error));
}

// The first of them, in words; empty: none.
std::string runs_set_aside(const SetAsideRuns& runs) {
  constexpr size_t kListedMax = 10;
  const std::vector<SetAsideRuns::Entry> all = runs.all();
  std::string text;
  for (size_t i = 0; i < std::min(all.size(), kListedMax); ++i) {
    text += fmt::format("{} ({}) is set aside: {}; ", run_name(all[i].run), all[i].label,
                        all[i].reason);
  }
  if (all.size() > kListedMax) text += fmt::format("{} more are; ", all.size() - kListedMax);
  return text.empty() ? text : text + "stop gnomond and run `gnomon ledger repair`";
}

Response readiness(Services& services, Exchange& exchange, bool stranger) {
  bool ready = true;
  std::string checks = check("accepting", stranger, ready, [&] {
    if (services.draining || services.stopping) {
      throw Error("the daemon is stopping");
    }
  });
  checks += ',';
  checks += check("ledger_read", stranger, ready, [&] {
    exchange.read([](Connection& connection) { ledger::run_ids(connection); });
  });
  checks += ',';
  checks += check("ledger_write", stranger, ready, [&] {
    exchange.write([&](LedgerTransaction& transaction) {
      transaction.connection().execute(
          "INSERT OR REPLACE INTO readiness (id, checked_at) VALUES (1, ?)", services.runs.now());
    });
  });
  checks += ',';
  checks += check("ledger_integrity", stranger, ready, [&] {
    const BackgroundCheck* integrity = services.integrity;
    if (integrity && integrity->state() == BackgroundCheck::State::kFailed) {
      throw Error(fmt::format("{}; stop the daemon and restore a backup", integrity->problem()));
    }
  });
  checks += ',';
  bool served = true;  // those that are not do not keep the others from being served
  checks += check("runs_served", stranger, served, [&] {
    const std::string set_aside = runs_set_aside(services.runs.set_aside());
    if (!set_aside.empty()) throw Error(set_aside);
  });
  return json_response(fmt::format(R"({{"ready":{},"checks":[{}]}})", ready, checks),
                       ready ? 200 : 503);
}

std::string version_json() {
  return fmt::format(
      R"({{"name":"gnomond","version":"{}","revision":"{}","build_type":"{}","compiler":"{}",)"
      R"("api":"v1","ledger_version":{}}})",
      kVersion, kRevision, kBuildType, kCompiler, kLedgerVersion);
}

}  // namespace

// With 1,000 runs the text takes a tenth of a second: a thread of the ledger's readers makes it, or
// this one when they have enough to do, since that is when somebody should see it.
std::string scrape(Services& s, Exchange& exchange) {
  std::string text;
  const auto make = [&] { text = s.metrics.serialize(s.runs.steady_now()); };
  try {
    exchange.read([&](Connection&) { make(); });
  } catch (const LedgerBusy&) {
    make();
  }
  return text;
}

std::vector<Route> metrics_routes(Services& s) {
  return {{"GET", "/metrics", {}, [&s](Exchange& exchange, const Request&) {
             return Response{
                 200, "text/plain; version=0.0.4; charset=utf-8", scrape(s, exchange), {}, false};
           }}};
}

std::vector<Route> health_routes(Services& s) {
  using E = Exchange;
  return {
      {"GET", "/livez", {}, [](E&, const Request&) { return json_response(R"({"live":true})"); }},
      {"GET",
       "/readyz",
       {},
       [&s](E& e, const Request& request) { return readiness(s, e, !request.principal); }},
      {"GET", "/version", {}, [](E&, const Request&) { return json_response(version_json()); }},
      {"GET",
       "/openapi.json",
       {},
       [&s](E&, const Request&) {
         Response response = json_response(s.openapi);
         response.headers = {{"Cache-Control", "no-cache"}, {"ETag", entity_tag(s.openapi)}};
         return response;
       }},
  };
}

void audited_write(Exchange& exchange, Services& services, Ledger::Write write) {
  std::optional<AuditNote> note;
  std::exception_ptr refusal;
  try {
    exchange.write(std::move(write));
    return;
  } catch (const HttpError& refused) {
    if (refused.audit()) {
      note = services.audit_note_limiter.admit(*refused.audit(), services.runs.steady_now());
    }
    refusal = std::current_exception();
  }
  if (note) {
    exchange.write([&](LedgerTransaction& transaction) {
      ledger::insert_audit(transaction.connection(), services.runs.now(), note->run, note->what,
                           note->detail);
    });
  }
  std::rethrow_exception(refusal);
}

Response json_response(std::string body, int status) {
  return {status, "application/json", std::move(body), {}, false};
}

}  // namespace gnomon
