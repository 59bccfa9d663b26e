#include <fmt/format.h>

#include "controller/api/services.h"
#include "controller/decide/decide.h"
#include "controller/decide/worth.h"
#include "controller/decision_state.h"
#include "controller/json_rows.h"
#include "controller/layers.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr int64_t kStepRowsMax = 20'000;
constexpr int64_t kRowsMax = 100'000;

constexpr const char* kRunSummary =
    "SELECT r.id, 'run-' || r.id AS run, r.name, r.job_id, r.state, r.registered_at, "
    "r.finished_at, r.finished_step, "
    "r.final_loss, r.train_seconds, "
    "(SELECT max(attempt) FROM attempts a WHERE a.run = r.id) AS attempt, "
    "s.step, s.plan_version, s.loss, s.grad_norm, s.learning_rate, s.reported_at, "
    "(SELECT c.step FROM checkpoints c WHERE c.run = r.id AND c.verified_at IS NOT NULL "
    " ORDER BY c.verified_at DESC, c.attempt DESC, c.step DESC LIMIT 1) AS verified_step, "
    "(SELECT count(*) FROM windows w WHERE w.run = r.id) AS windows, "
    "(SELECT count(*) FROM decisions d WHERE d.run = r.id) AS decisions "
    "FROM runs r LEFT JOIN steps s ON s.run = r.id AND (s.attempt, s.step) = "
    "(SELECT t.attempt, t.step FROM steps t WHERE t.run = r.id ORDER BY t.attempt DESC, t.step "
    "DESC LIMIT 1) "
    "WHERE r.id = ?";

// What people should see beside a verdict on hardware: what its attempt's GPU had counted.
constexpr const char* kDecisions =
    "SELECT d.*, CASE WHEN d.verdict IN ('transient_fault', 'persistent_fault') THEN "
    "(SELECT n.text FROM notices n WHERE n.run = d.run AND n.kind = 'ecc_errors' AND n.attempt = "
    "d.attempt ORDER BY n.notice DESC LIMIT 1) END AS device_errors "
    "FROM decisions d WHERE d.run = ? AND d.decision >= ? ORDER BY d.decision LIMIT ?";

// `row`, a JSON object, with more members.
std::string with_members(std::string row, const std::string& members) {
  row.back() = ',';
  row += members;
  row += '}';
  return row;
}

decide::State state_of(Connection& connection, int64_t run, const decide::Policy& policy) {
  std::optional<StateOnRecord> known = state_on_record(connection, run, policy);
  return known ? std::move(known->state) : decide::State{};
}

// The summary of one run, with what only the decision core and the policy know.
std::string run_summary(Connection& connection, const ledger::RunRow& run) {
  decide::Policy policy = decide::Policy::parse(run.policy, "policy");
  decide::State state = state_of(connection, run.id, policy);
  Query query = connection.query(kRunSummary, run.id);
  return with_members(first_row_as_json(query),
                      fmt::format(R"("phase":"{}","mode":"{}")", decide::phase_name(state),
                                  decide::mode_name(decide::mode_in_force(state, policy))));
}

ledger::RunRow require_run(Connection& connection, const Request& request) {
  std::optional<ledger::RunRow> run =
      ledger::load_run(connection, parse_run_id(request.arguments[0]));
  if (!run) {
    throw unknown_run(request.arguments[0]);
  }
  return *run;
}

std::string list_runs(Connection& connection, const Request&) {
  std::string json = "[";
  for (int64_t id : ledger::run_ids(connection)) {
    append_element(json, run_summary(connection, ledger::load_run(connection, id).value()));
  }
  json += ']';
  return json;
}

std::string show_run(Connection& connection, const Request& request) {
  ledger::RunRow run = require_run(connection, request);
  Query faults = connection.query("SELECT * FROM faults WHERE run = ?", run.id);
  Query attempts =
      connection.query("SELECT * FROM attempts WHERE run = ? ORDER BY attempt", run.id);
  Query health = connection.query(
      "SELECT * FROM device_health WHERE run = ? ORDER BY sample DESC LIMIT 1", run.id);
  const decide::State state =
      state_of(connection, run.id, decide::Policy::parse(run.policy, "policy"));
  return with_members(
      run_summary(connection, run),
      fmt::format(R"("registration":{},"policy":{},"faults":{},"attempts":{},"device_health":{},)"
                  R"("decision_state":{})",
                  run.registration, string_as_json(run.policy), rows_as_json(faults),
                  rows_as_json(attempts), first_row_as_json(health), decide::state_to_json(state)));
}

std::string show_economics(Connection& connection, const Request& request) {
  ledger::RunRow run = require_run(connection, request);
  const decide::Policy policy = decide::Policy::parse(run.policy, "policy");
  return decide::worth_to_json(decide::worth(state_of(connection, run.id, policy), policy));
}

std::string list_steps(Connection& connection, const Request& request) {
  int64_t run = require_run(connection, request).id;
  int64_t from = query_integer(request, "from", 0, 0, INT64_MAX);
  int64_t to = query_integer(request, "to", INT64_MAX, 0, INT64_MAX);
  int64_t every = query_integer(request, "every", 1, 1, INT64_MAX);
  int64_t attempt = query_integer(request, "attempt", 0, 0, INT64_MAX);
  Query count = connection.query(
      "SELECT count(*) FROM steps WHERE run = ?1 AND step BETWEEN ?2 AND ?3 AND step % ?4 = 0 "
      "AND (?5 = 0 OR attempt = ?5)",
      run, from, to, every, attempt);
  count.next();
  if (count.integer(0) > kStepRowsMax) {
    throw Refusal(400, "Too many steps",
                  fmt::format("{} steps would be answered", count.integer(0)),
                  fmt::format("at most {}: give from, to, or every={} or more", kStepRowsMax,
                              every * (count.integer(0) / kStepRowsMax + 1)));
  }
  Query rows = connection.query(
      "SELECT * FROM steps WHERE run = ?1 AND step BETWEEN ?2 AND ?3 AND step % ?4 = 0 AND (?5 = 0 "
      "OR attempt = ?5) "
      "ORDER BY attempt, step",
      run, from, to, every, attempt);
  return rows_as_json(rows);
}

// All rows of a run with an id above `after`, at most `limit`.
std::string list_rows(Connection& connection, const Request& request, const char* sql) {
  int64_t run = require_run(connection, request).id;
  Query rows = connection.query(sql, run, query_integer(request, "from", 0, 0, INT64_MAX),
                                query_integer(request, "limit", kRowsMax, 1, kRowsMax));
  return rows_as_json(rows);
}

std::string gemm_format(const SitePrecision& precision, Gemm gemm) {
  return precision.uses_fp8(gemm) ? "fp8" : "bf16";
}

// Each site with how its GEMMs run under the plan `plan_version`; without it, of the newest step.
std::string list_layers(Connection& connection, const Request& request) {
  ledger::RunRow run = require_run(connection, request);
  RunRegistration registration = from_json<RunRegistration>(run.registration);
  Query newest = connection.query(
      "SELECT plan_version FROM steps WHERE run = ? ORDER BY attempt DESC, step DESC LIMIT 1",
      run.id);
  int64_t newest_version = newest.next() ? newest.integer(0) : 0;
  int64_t version = query_integer(request, "plan_version", newest_version, 0, INT64_MAX);
  std::optional<std::string> toml = ledger::find_plan(connection, run.id, version);
  PrecisionPlan plan = PrecisionPlan::parse(toml.value_or(registration.base_plan));
  std::string json = "[";
  for (const std::string& site : registration.sites) {
    SitePrecision precision = plan.resolve(site, registration.layers);
    std::string element = fmt::format(
        R"({{"site":{},"layer":{},"fprop":"{}","dgrad":"{}","wgrad":"{}","recipe":"{}","plan_version":{}}})",
        string_as_json(site), string_as_json(layer_of_site(site)),
        gemm_format(precision, Gemm::kFprop), gemm_format(precision, Gemm::kDgrad),
        gemm_format(precision, Gemm::kWgrad), precision.recipes(), plan.version);
    append_element(json, element);
  }
  json += ']';
  return json;
}

Route view(const char* path, std::function<std::string(Connection&, const Request&)> show) {
  return {"GET", path, BodyKind::kNone, 0, [show](Exchange& exchange, const Request& request) {
            std::string json;
            exchange.read([&](Connection& connection) { json = show(connection, request); });
            return json_response(json);
          }};
}

Route rows_view(const char* path, const char* sql) {
  return view(path, [sql](Connection& connection, const Request& request) {
    return list_rows(connection, request, sql);
  });
}

}  // namespace

std::vector<Route> view_routes(Services&) {
  return {
      view("/v1/runs", list_runs),
      view("/v1/runs/{run}", show_run),
      view("/v1/runs/{run}/steps", list_steps),
      view("/v1/runs/{run}/layers", list_layers),
      view("/v1/runs/{run}/economics", show_economics),
      rows_view(
          "/v1/runs/{run}/checkpoints",
          "SELECT * FROM checkpoints WHERE run = ? AND step >= ? ORDER BY attempt, step LIMIT ?"),
      rows_view("/v1/runs/{run}/windows",
                "SELECT * FROM windows WHERE run = ? AND window >= ? ORDER BY window LIMIT ?"),
      rows_view("/v1/runs/{run}/decisions", kDecisions),
      rows_view("/v1/runs/{run}/plans",
                "SELECT * FROM plans WHERE run = ? AND version >= ? ORDER BY version LIMIT ?"),
      rows_view("/v1/runs/{run}/replays",
                "SELECT r.run, r.replay, r.window, r.arm, r.plan, r.purpose, r.priority, r.state, "
                "r.token, "
                "r.fail_reason, r.ordered_at, r.finished_at, x.verifier, x.fingerprint, "
                "x.start_loss_bf16, "
                "x.start_loss_plan, x.run_end_loss_bf16, x.replay_end_loss_bf16, x.heldout_tokens, "
                "x.replay_seconds, "
                "x.eval_seconds FROM replays r LEFT JOIN results x ON x.run = r.run AND x.replay = "
                "r.replay "
                "WHERE r.run = ? AND r.replay >= ? ORDER BY r.replay LIMIT ?"),
      rows_view("/v1/runs/{run}/shadow",
                "SELECT r.window, w.attempt, s.step, s.loss FROM replay_steps s "
                "JOIN replays r ON r.run = s.run AND r.replay = s.replay "
                "JOIN windows w ON w.run = r.run AND w.window = r.window "
                "WHERE s.run = ? AND s.step >= ? AND r.arm = 'bf16' AND r.purpose = 'shadow' "
                "AND r.state = 'done' ORDER BY r.window, s.step LIMIT ?"),
      rows_view(
          "/v1/runs/{run}/device_health",
          "SELECT * FROM device_health WHERE run = ? AND sample >= ? ORDER BY sample LIMIT ?"),
      rows_view("/v1/runs/{run}/notices",
                "SELECT * FROM notices WHERE run = ? AND notice >= ? ORDER BY notice LIMIT ?"),
      rows_view(
          "/v1/runs/{run}/overrides",
          "SELECT * FROM overrides WHERE run = ? AND override >= ? ORDER BY override LIMIT ?"),
      rows_view("/v1/runs/{run}/audit",
                "SELECT * FROM audit WHERE run = ? AND id >= ? ORDER BY id LIMIT ?"),
  };
}

}  // namespace gnomon
