#include "controller/api/listing.h"
#include "controller/api/run_views.h"
#include "controller/api/services.h"
#include "controller/decide/net_speedup.h"
#include "storage/view_queries.h"

namespace gnomon {
namespace {

std::string show_economics(Connection& connection, const Request& request,
                           SetAsideRuns& set_aside) {
  const auto [policy, known] = set_aside.read(connection, require_run(connection, request));
  return decide::net_speedup_to_json(
      decide::net_speedup_report(known ? known->state : decide::State{}, policy));
}

}  // namespace

std::vector<Route> view_routes(Services& services) {
  SetAsideRuns& set_aside = services.runs.set_aside();
  std::vector<Route> routes = run_view_routes(services.runs);
  for (Route& route : std::vector<Route>{
           view("/v1/runs/{run}/economics",
                [&set_aside](Connection&connection, const Request&request) {
                  return show_economics(connection, request, set_aside);
                }),
           placed_rows("/v1/runs/{run}/checkpoints", views::kCheckpoints, "attempt", "step",
                       "CheckpointRow"),
           placed_rows("/v1/runs/{run}/shadow", views::kShadow, "window", "step", "ShadowRow"),
           numbered_rows("/v1/runs/{run}/windows", views::kWindows, "window", "WindowRow"),
           numbered_rows("/v1/runs/{run}/decisions", views::kDecisions, "decision", "DecisionRow"),
           numbered_rows("/v1/runs/{run}/plans", views::kPlans, "version", "PlanRow"),
           numbered_rows("/v1/runs/{run}/replays", views::kReplays, "replay", "ReplayRow"),
           numbered_rows("/v1/runs/{run}/device_health", views::kDeviceHealth, "sample",
                         "DeviceHealthRow"),
           numbered_rows("/v1/runs/{run}/notices", views::kNotices, "notice", "NoticeRow"),
           numbered_rows("/v1/runs/{run}/overrides", views::kOverrides, "override", "OverrideRow"),
           numbered_rows("/v1/runs/{run}/audit", views::kAudit, "id", "AuditRow"),
       }) {
    routes.push_back(std::move(route));
  }
  return routes;
}

}  // namespace gnomon
