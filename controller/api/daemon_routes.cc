#include <fmt/format.h>

#include <charconv>

#include "base/version.h"
#include "controller/api/services.h"
#include "controller/json_rows.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_migrations.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr int kStreamChunk = 256;  // rows read at once
constexpr auto kKeepAlive = std::chrono::seconds(15);

// The id that the client has seen last; -1 when it says none.
int64_t asked_start(const Request& request) {
  const std::string& text = request.last_event_id;
  if (!text.empty()) {
    int64_t id = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
    if (error != std::errc() || end != text.data() + text.size() || id < 0) {
      throw Refusal(400, "Header not accepted", fmt::format("Last-Event-ID is \"{}\"", text),
                    "an id of this stream");
    }
    return id;
  }
  if (request.query.contains("after")) {
    return query_integer(request, "after", 0, 0, INT64_MAX);
  }
  return -1;
}

// Where to go on: what was asked for, else now. Throws Refusal (410) when rows that should follow
// are gone, or when the id is none of this ledger's: the client must not believe that it missed
// nothing.
int64_t checked_start(Exchange& exchange, int64_t asked) {
  ledger::StreamRange range;
  exchange.read([&](Connection& connection) { range = ledger::stream_range(connection); });
  if (asked < 0) {
    return range.newest;
  }
  if (asked > range.newest || asked + 1 < range.oldest) {
    throw Refusal(410, "The stream has a gap",
                  fmt::format("events after {} were asked for; there are those from {} to {}",
                              asked, range.oldest, range.newest),
                  fmt::format("an id from {} to {}, or none for what comes from now on; the lists "
                              "of /v1/runs have everything",
                              range.oldest - 1, range.newest));
  }
  return asked;
}

// Server-sent events: what happens to runs as it is recorded, from Last-Event-ID (or ?after=) on,
// else from now on.
Response events(Services& services, Exchange& exchange, const Request& request) {
  int64_t last = checked_start(exchange, asked_start(request));
  exchange.start_stream("text/event-stream");
  while (!exchange.over()) {
    uint64_t seen = services.bells.stream.count();
    std::vector<ledger::StreamRow> rows;
    exchange.read([&](Connection& connection) {
      rows = ledger::stream_after(connection, last, kStreamChunk);
    });
    if (!rows.empty() && rows.front().id != last + 1) {
      break;  // a week behind and overtaken: the client comes again and is told
    }
    std::string text;
    for (const ledger::StreamRow& row : rows) {
      text += fmt::format("id: {}\nevent: {}\ndata: {}\n\n", row.id, row.type, row.body);
      last = row.id;
    }
    if (rows.empty() &&
        !exchange.wait(services.bells.stream, seen, Exchange::Clock::now() + kKeepAlive)) {
      text = ": still here\n\n";
    }
    if (!text.empty() && !exchange.send(text)) {
      break;
    }
  }
  Response response;
  response.streamed = true;
  return response;
}

// Runs one readiness check and describes it as JSON.
std::string check(const char* name, bool& ready, const std::function<void()>& probe) {
  std::string error;
  try {
    probe();
  } catch (const std::exception& failure) {
    error = failure.what();
    ready = false;
  }
  return fmt::format(R"({{"name":"{}","ok":{},"error":{}}})", name, error.empty(),
                     error.empty() ? "null" : string_as_json(error));
}

Response readiness(Services& services, Exchange& exchange) {
  bool ready = true;
  std::string checks = check("accepting", ready, [&] {
    if (services.stopping) {
      throw Error("the daemon is stopping");
    }
  });
  checks += ',';
  checks += check("ledger_read", ready, [&] {
    exchange.read([](Connection& connection) { ledger::run_ids(connection); });
  });
  checks += ',';
  checks += check("ledger_write", ready, [&] {
    exchange.write([&](LedgerTransaction& transaction) {
      transaction.connection().execute(
          "INSERT OR REPLACE INTO readiness (id, checked_at) VALUES (1, ?)",
          services.supervisor.now());
    });
  });
  checks += ',';
  checks += check("ledger_integrity", ready, [&] {
    const BackgroundCheck* integrity = services.integrity;
    if (integrity && integrity->state() == BackgroundCheck::State::kFailed) {
      throw Error(fmt::format("{}; stop the daemon and restore a backup", integrity->problem()));
    }
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

std::vector<Route> daemon_routes(Services& s) {
  using E = Exchange;
  return {
      {"GET", "/v1/events", BodyKind::kNone, 0,
       [&s](E& e, const Request& request) { return events(s, e, request); }, false},
      {"GET", "/metrics", BodyKind::kNone, 0,
       [&s](E&, const Request&) {
         return Response{200,
                         "text/plain; version=0.0.4; charset=utf-8",
                         s.metrics.serialize(s.supervisor.steady_now()),
                         {},
                         false};
       }},
      {"GET", "/livez", BodyKind::kNone, 0,
       [](E&, const Request&) { return json_response(R"({"live":true})"); }},
      {"GET", "/readyz", BodyKind::kNone, 0,
       [&s](E& e, const Request&) { return readiness(s, e); }},
      {"GET", "/version", BodyKind::kNone, 0,
       [](E&, const Request&) { return json_response(version_json()); }},
  };
}

void audited_write(Exchange& exchange, Services& services, Ledger::Write write) {
  std::optional<AuditNote> note;
  std::exception_ptr refusal;
  try {
    exchange.write(std::move(write));
    return;
  } catch (const Refusal& refused) {
    note = refused.audit();
    refusal = std::current_exception();
  }
  if (note) {
    exchange.write([&](LedgerTransaction& transaction) {
      ledger::insert_audit(transaction.connection(), services.supervisor.now(), note->run,
                           note->what, note->detail);
    });
  }
  std::rethrow_exception(refusal);
}

Response json_response(std::string body, int status) {
  return {status, "application/json", std::move(body), {}, false};
}

}  // namespace gnomon
