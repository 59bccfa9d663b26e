#include <utility>

#include "controller/api/openapi_document.h"
#include "controller/api/run_scope.h"
#include "controller/api/services.h"

namespace gnomon {

std::vector<Route> all_routes(Services& services) {
  using Make = std::vector<Route> (*)(Services&);
  struct Table {
    Make make;
    Access reads;
    Access changes;
  };
  const Table tables[] = {
      {trainer_routes, Access::kRead, Access::kTrain},
      {verifier_routes, Access::kRead, Access::kVerify},
      {view_routes, Access::kRead, Access::kAdminister},
      {policy_routes, Access::kRead, Access::kOperate},
      {policy_check_routes, Access::kRead, Access::kRead},
      {statistics_routes, Access::kRead, Access::kTrain},
      {event_routes, Access::kRead, Access::kAdminister},
      {ledger_routes, Access::kRead, Access::kAdminister},
      {metrics_routes, Access::kRead, Access::kAdminister},
      {health_routes, Access::kOpen, Access::kAdminister},
  };
  std::vector<Route> routes;
  for (const Table& table : tables) {
    for (Route& route : with_access(table.make(services), table.reads, table.changes)) {
      routes.push_back(std::move(route));
    }
  }
  std::vector<Route> described = routes;
  described.push_back(page_route(services));
  services.openapi = openapi_document(described);
  return within_runs(std::move(routes));
}

}  // namespace gnomon
