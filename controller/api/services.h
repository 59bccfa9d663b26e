// What the routes work with, and the tables of routes by subject. openapi/ describes each.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "controller/api/audit_note_limiter.h"
#include "controller/api/router.h"
#include "controller/backups/backups.h"
#include "controller/leases/leases.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor/change_notifier.h"
#include "controller/supervisor/replay_queue.h"
#include "controller/supervisor/run_cache.h"
#include "storage/ledger.h"
#include "storage/ledger_integrity.h"

namespace gnomon {

struct Services {
  Ledger& ledger;
  RunCache& runs;
  Leases& leases;
  Metrics& metrics;
  ReplayQueue& queue;
  ChangeNotifiers& notifiers;
  Authenticator& authenticator;
  std::string web_root;                // empty: the built-in page
  std::atomic<bool> draining = false;  // no new work is given out; set before `stopping`
  std::atomic<bool> stopping = false;
  Backups* backups = nullptr;
  const BackgroundCheck* integrity = nullptr;  // null: none is made
  AuditNoteLimiter audit_note_limiter = {};
  std::string openapi = {};  // the document of the API; all_routes() makes it
};

std::vector<Route> trainer_routes(Services& services);   // runs, reports, directives
std::vector<Route> verifier_routes(Services& services);  // leases
std::vector<Route> view_routes(Services& services);    // what is on record, for people and programs
std::vector<Route> policy_routes(Services& services);  // policies and overrides
std::vector<Route> policy_check_routes(Services& services);
std::vector<Route> statistics_routes(Services& services);
std::vector<Route> ledger_routes(Services& services);  // backups, audit log, outbox
std::vector<Route> event_routes(Services& services);   // the stream
std::vector<Route> metrics_routes(Services& services);
std::vector<Route> health_routes(Services& services);  // health, version, the API's document
std::vector<Route> all_routes(Services& services);     // all of these, with who may use them
Route page_route(Services& services);                  // everything outside /v1

// A write that may be refused: the refusal's audit note is recorded by itself before the refusal
// goes on, as often as audit_note_limiter.h says.
void audited_write(Exchange& exchange, Services& services, Ledger::Write write);

Response json_response(std::string body, int status = 200);

}  // namespace gnomon
