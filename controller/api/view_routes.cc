#include "controller/api/listing.h"
#include "controller/api/run_views.h"
#include "controller/api/services.h"
#include "controller/api/view_queries.h"
#include "controller/decide/worth.h"

namespace gnomon {
namespace {

std::string show_economics(Connection& connection, const Request& request) {
  ledger::RunRow run = require_run(connection, request);
  const decide::Policy policy = decide::Policy::parse(run.policy, "policy");
  return decide::worth_to_json(decide::worth(state_of(connection, run.id, policy), policy));
}

}  // namespace

std::vector<Route> view_routes(Services&) {
  std::vector<Route> routes = run_view_routes();
  for (Route& route : std::vector<Route>{
           view("/v1/runs/{run}/economics", show_economics),
           placed_rows("/v1/runs/{run}/checkpoints", views::kCheckpoints, "attempt", "step"),
           placed_rows("/v1/runs/{run}/shadow", views::kShadow, "window", "step"),
           numbered_rows("/v1/runs/{run}/windows", views::kWindows, "window"),
           numbered_rows("/v1/runs/{run}/decisions", views::kDecisions, "decision"),
           numbered_rows("/v1/runs/{run}/plans", views::kPlans, "version"),
           numbered_rows("/v1/runs/{run}/replays", views::kReplays, "replay"),
           numbered_rows("/v1/runs/{run}/device_health", views::kDeviceHealth, "sample"),
           numbered_rows("/v1/runs/{run}/notices", views::kNotices, "notice"),
           numbered_rows("/v1/runs/{run}/overrides", views::kOverrides, "override"),
           numbered_rows("/v1/runs/{run}/audit", views::kAudit, "id"),
       }) {
    routes.push_back(std::move(route));
  }
  return routes;
}

}  // namespace gnomon
