#include "controller/api/services.h"

namespace gnomon {

std::vector<Route> all_routes(Services& services) {
  std::vector<Route> routes;
  for (auto make : {trainer_routes, verifier_routes, view_routes, policy_routes, statistics_routes,
                    event_routes, ledger_routes, daemon_routes}) {
    for (Route& route : make(services)) {
      routes.push_back(std::move(route));
    }
  }
  return routes;
}

}  // namespace gnomon
