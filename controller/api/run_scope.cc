#include "controller/api/run_scope.h"

#include <optional>
#include <utility>

#include "controller/auth/http_error.h"
#include "storage/ledger_leases.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr const char* kOfARun = "/v1/runs/{run}";

bool has_runs(const Request& request) { return request.principal && request.principal->has_runs(); }

}  // namespace

void check_run(Exchange& exchange, const Request& request, int64_t run) {
  if (!has_runs(request)) return;
  std::optional<RunRow> row;
  read_patiently(exchange,
                 [&](Connection& connection) { row = ledger::load_run(connection, run); });
  if (row) Authenticator::authorise_run(*request.principal, row->name);
}

void check_lease(Exchange& exchange, const Request& request, int64_t lease) {
  if (!has_runs(request)) return;
  std::optional<LeaseRow> row;
  read_patiently(exchange,
                 [&](Connection& connection) { row = ledger::find_lease(connection, lease); });
  if (row) check_run(exchange, request, row->run);
}

std::vector<Route> within_runs(std::vector<Route> routes) {
  for (Route& route : routes) {
    if (route.method == "GET" || !route.pattern.starts_with(kOfARun)) continue;
    route.handler = [handler = std::move(route.handler)](Exchange& exchange,
                                                         const Request& request) {
      check_run(exchange, request, parse_run_id(request.arguments[0]));
      return handler(exchange, request);
    };
  }
  return routes;
}

}  // namespace gnomon
