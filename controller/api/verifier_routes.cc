#include <fmt/format.h>

#include <charconv>

#include "controller/api/services.h"
#include "protocol/json.h"
#include "storage/ledger_windows.h"

namespace gnomon {
namespace {

constexpr int64_t kWaitMaxSeconds = 120;

int64_t lease_id(const std::string& text) {
  int64_t id = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Refusal(404, "Unknown lease", fmt::format("there is no lease \"{}\"", text),
                  "a lease from POST /v1/leases");
  }
  return id;
}

// Waits for work up to `wait`; 204 when there is none.
Response ask_for_work(Services& services, Exchange& exchange, const Request& request) {
  LeaseRequest message = from_json<LeaseRequest>(request.body);
  Leases::check(message);
  const double wait = query_seconds(request, "wait");
  std::optional<Lease> lease;
  poll_until(exchange, services.bells.work, deadline_after(wait), [&] {
    if (services.stopping) return false;
    bool any = false;
    exchange.read(
        [&](Connection& connection) { any = ledger::next_queued_replay(connection).has_value(); });
    // A lease to a client that hung up while it waited would cost a lease time.
    if (!any || (wait > 0 && exchange.over())) return false;
    audited_write(exchange, services, [&](LedgerTransaction& transaction) {
      lease = services.leases.grant(transaction, message);
    });
    return lease.has_value();
  });
  return lease ? json_response(to_json(*lease)) : Response{204, "", "", {}, false};
}

template <typename Message>
Route lease_route(Services& services, const char* path, size_t body_max,
                  void (Leases::*take)(LedgerTransaction&, int64_t, const Message&)) {
  return {"POST", path, BodyKind::kJson, body_max,
          [&services, take](Exchange& exchange, const Request& request) {
            int64_t lease = lease_id(request.arguments[0]);
            Message message = from_json<Message>(request.body);
            audited_write(exchange, services, [&](LedgerTransaction& transaction) {
              (services.leases.*take)(transaction, lease, message);
            });
            return json_response("{}");
          }};
}

}  // namespace

std::vector<Route> verifier_routes(Services& s) {
  return {
      {"POST",
       "/v1/leases",
       BodyKind::kJson,
       64 << 10,
       [&s](Exchange& e, const Request& request) { return ask_for_work(s, e, request); },
       false,
       {seconds_parameter("wait", kWaitMaxSeconds)}},
      lease_route(s, "/v1/leases/{lease}/heartbeat", 4 << 10, &Leases::heartbeat),
      lease_route(s, "/v1/leases/{lease}/complete", 32 << 20, &Leases::complete),
      lease_route(s, "/v1/leases/{lease}/fail", 64 << 10, &Leases::fail),
  };
}

}  // namespace gnomon
