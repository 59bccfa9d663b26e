#include "controller/api/run_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "base/hash.h"
#include "controller/api/listing.h"
#include "controller/api/services.h"
#include "controller/metrics/layers.h"
#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "storage/json_rows.h"
#include "storage/ledger_decisions.h"
#include "storage/view_queries.h"

namespace gnomon {
namespace {

constexpr int64_t kRunsDefault = 100;
constexpr int64_t kRunsMax = 1'000;
constexpr int64_t kStepRowsMax = 20'000;

// `row`, a JSON object, with more members.
std::string with_members(std::string row, const std::string& members) {
  row.back() = ',';
  row += members;
  row += '}';
  return row;
}

// What views of runs are made from beside the ledger.
struct Sources {
  explicit Sources(RunCache& by) : runs(by), phases(by.set_aside()) {}
  RunCache& runs;
  PhaseCache phases;
};

// The verdict at this moment.
VerdictBoard::Shown verdict_now(const RunRow& run, const PhaseCache::Phase& phase,
                                const RunCache& runs) {
  const double now = runs.now();
  if (!phase.set_aside.empty()) return {phase.facts.standing, 0};
  if (run.state == "live") {
    if (std::optional<VerdictBoard::Shown> shown = runs.verdicts().of(run.id, now))
      return *std::move(shown);
    return {decide::run_verdict(phase.facts, now), phase.facts.lag_steps};
  }
  return {decide::ended_verdict(phase.facts, run.state, run.finished_at.value_or(0)),
          phase.facts.lag_steps};
}

std::string run_summary(Connection& connection, const RunRow& run, Sources& sources) {
  const PhaseCache::Phase phase = sources.phases.of(connection, run);
  const VerdictBoard::Shown shown = verdict_now(run, phase, sources.runs);
  const decide::RunVerdict& verdict = shown.verdict;
  Query query = connection.query(views::kRunSummary, run.id);
  return with_members(
      first_row_as_json(query),
      fmt::format(R"("phase":"{}","mode":"{}","verdict":"{}","verdict_sentence":{},)"
                  R"("verdict_since":{},"verification_lag_steps":{},"set_aside":{})",
                  phase.phase, phase.mode, decide::verdict_name(verdict.kind),
                  string_as_json(verdict.sentence),
                  verdict.since > 0 ? fmt::format("{}", verdict.since) : "null", shown.lag_steps,
                  phase.set_aside.empty() ? "null" : string_as_json(phase.set_aside)));
}

Query run_ids(Connection& connection, const Request& request, int64_t count) {
  const int64_t after = query_integer(request, "after");
  const std::string state = query_text(request, "state");
  const std::string name = query_text(request, "name");
  if (query_given(request, "name")) {
    return connection.query(views::kRunsNamed, after, count, name, state);
  }
  return state.empty() ? connection.query(views::kRuns, after, count)
                       : connection.query(views::kRunsInState, after, count, state);
}

Response list_runs(Exchange& exchange, const Request& request, Sources& sources) {
  Page page(query_integer(request, "limit"));
  exchange.read([&](Connection& connection) {
    std::vector<int64_t> ids;
    {
      Query found = run_ids(connection, request, page.rows_wanted());
      while (found.next()) ids.push_back(found.integer(0));
    }
    for (const int64_t id : ids) {
      page.add(page.rows_wanted() == 1
                   ? std::string()
                   : run_summary(connection, ledger::load_run(connection, id).value(), sources),
               id);
    }
  });
  const std::string next = fmt::format("{}", page.key());
  return std::move(page).response(request, "after", next);
}

std::string state_json(Connection& connection, const RunRow& run, SetAsideRuns& set_aside) {
  try {
    const auto known = set_aside.read(connection, run).known;
    return decide::state_to_json(known ? known->state : decide::State{});
  } catch (const RunSetAside&) {  // the summary says so
    return "null";
  }
}

std::string show_run(Connection& connection, const Request& request, Sources& sources) {
  RunRow run = require_run(connection, request);
  Query faults = connection.query(views::kFaults, run.id);
  Query attempts = connection.query(views::kAttempts, run.id);
  Query health = connection.query(views::kNewestHealth, run.id);
  return with_members(
      run_summary(connection, run, sources),
      fmt::format(R"("registration":{},"policy":{},"faults":{},"attempts":{},"device_health":{},)"
                  R"("decision_state":{})",
                  run.registration, string_as_json(run.policy), rows_as_json(faults),
                  rows_as_json(attempts), first_row_as_json(health),
                  state_json(connection, run, sources.runs.set_aside())));
}

std::optional<int64_t> step_bound(Connection& connection, const char* sql, int64_t run,
                                  int64_t attempt, int64_t step) {
  Query bound = connection.query(sql, run, attempt, step);
  return bound.next() ? bound.optional_integer(0) : std::nullopt;
}

// Steps first..last of an attempt that `every` divides.
void add_steps(Connection& connection, Page& page, int64_t run, int64_t attempt, int64_t from,
               int64_t to, int64_t every) {
  const auto first = step_bound(connection, views::kFirstStepFrom, run, attempt, from);
  const auto last = step_bound(connection, views::kLastStepTo, run, attempt, to);
  if (!first || !last || *first > *last) return;
  if (every == 1) {
    Query rows = connection.query(views::kSteps, run, attempt, *first, *last, page.rows_wanted());
    page.add(rows, "attempt", "step");
    return;
  }
  const int64_t rest = *first % every;
  if (rest > 0 && *first - rest > *last - every) return;
  const int64_t start = rest == 0 ? *first : *first - rest + every;
  Query rows =
      connection.query(views::kStepsEvery, run, attempt, start, *last, page.rows_wanted(), every);
  page.add(rows, "attempt", "step");
}

Response list_steps(Exchange& exchange, const Request& request) {
  const int64_t from = query_integer(request, "from");
  const int64_t to = query_integer(request, "to");
  const int64_t every = query_integer(request, "every");
  const int64_t only = query_integer(request, "attempt");
  // No structured binding: clang takes none into a lambda.
  const std::pair<int64_t, int64_t> place = query_place(request, "after");
  const int64_t after_attempt = place.first;
  const int64_t after_step = place.second;
  const bool goes_on = query_given(request, "after");
  Page page(query_integer(request, "limit"));
  exchange.read([&](Connection& connection) {
    const int64_t run = require_run(connection, request).id;
    std::vector<int64_t> attempts;
    {
      Query numbers = connection.query(views::kAttemptNumbers, run, after_attempt);
      while (numbers.next()) attempts.push_back(numbers.integer(0));
    }
    for (const int64_t attempt : attempts) {
      if (only != 0 && attempt != only) continue;
      const bool inside = goes_on && attempt == after_attempt;
      if (inside && after_step >= to) continue;
      const int64_t start = inside ? std::max(from, after_step + 1) : from;
      if (!page.more()) add_steps(connection, page, run, attempt, start, to, every);
    }
  });
  const std::string next = fmt::format("{}.{}", page.key(), page.second_key());
  return std::move(page).response(request, "after", next);
}

std::string gemm_format(const SitePrecision& precision, Gemm gemm) {
  return precision.uses_fp8(gemm) ? "fp8" : "bf16";
}

// Each site with how its GEMMs run under the plan `plan_version`; without it, of the newest step.
std::string list_layers(Connection& connection, const Request& request) {
  RunRow run = require_run(connection, request);
  RunRegistration registration = from_json<RunRegistration>(run.registration);
  Query newest = connection.query(views::kNewestPlan, run.id);
  int64_t version = newest.next() ? newest.integer(0) : 0;
  if (query_given(request, "plan_version")) version = query_integer(request, "plan_version");
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

}  // namespace

namespace {

PhaseCache::Phase phase_set_aside(const RunRow& run, const std::string& reason) {
  decide::Policy policy;
  try {
    policy = decide::Policy::parse(run.policy, "policy");
  } catch (const Error&) {  // which may be the reason
  }
  PhaseCache::Phase phase{"set_aside", std::string(decide::mode_name(policy.mode)), reason, {}};
  phase.facts.standing.sentence =
      "The run is set aside, since its state can neither be read nor rebuilt: nobody verifies it, "
      "and nothing is decided about it. Other runs go on. `gnomon ledger repair` says what can be "
      "done.";
  return phase;
}

}  // namespace

PhaseCache::Phase PhaseCache::of(Connection& connection, const RunRow& run) {
  Query newest = connection.query("SELECT seq FROM decision_state WHERE run = ?", run.id);
  const int64_t seq = newest.next() ? newest.integer(0) : 0;
  const uint64_t policy_hash = hash64(run.policy.data(), run.policy.size());
  {
    std::lock_guard lock(mutex_);
    const auto found = known_.find(run.id);
    if (found != known_.end() && found->second.seq == seq && found->second.policy == policy_hash) {
      return found->second.phase;
    }
  }
  Phase phase;
  try {
    const auto [policy, known] = set_aside_.read(connection, run);
    const decide::State state = known ? known->state : decide::State{};
    phase = {std::string(decide::phase_name(state)),
             std::string(decide::mode_name(decide::mode_in_force(state, policy))),
             {},
             decide::verdict_facts(state, policy)};
  } catch (const RunSetAside& error) {
    return phase_set_aside(run, error.reason());
  }
  std::lock_guard lock(mutex_);
  known_[run.id] = {seq, policy_hash, phase};
  return phase;
}

std::vector<Route> run_view_routes(RunCache& runs) {
  auto sources = std::make_shared<Sources>(runs);
  return {
      {"GET",
       "/v1/runs",
       {},
       [sources](Exchange& e, const Request& request) { return list_runs(e, request, *sources); },
       true,
       {integer_parameter("after", "Runs with an id above this one.", 0, INT64_MAX, 0),
        limit_parameter(kRunsMax, kRunsDefault),
        choice_parameter("state", "Runs in this state alone.",
                         {kRunStates.begin(), kRunStates.end()}),
        text_parameter("name", "Runs of this name alone, whatever their job id.")},
       "RunSummary"},
      view("/v1/runs/{run}",
           [sources](Connection& connection, const Request& request) {
             return show_run(connection, request, *sources);
           }),
      {"GET",
       "/v1/runs/{run}/steps",
       {},
       [](Exchange& e, const Request& request) { return list_steps(e, request); },
       true,
       {from_step_parameter(), to_step_parameter(),
        integer_parameter("every", "Only steps that this number divides.", 1, INT64_MAX, 1),
        integer_parameter("attempt", "Only this attempt; 0: all of them.", 0, INT64_MAX, 0),
        after_place_parameter(), limit_parameter(kStepRowsMax, kStepRowsMax)},
       "StepRow"},
      view("/v1/runs/{run}/layers", list_layers,
           {integer_parameter("plan_version",
                              "Under this plan of the run; under the newest step's when it is not "
                              "given. Under the run's base plan when there is no plan of that "
                              "version.",
                              INT64_MIN, INT64_MAX, {})}),
  };
}

}  // namespace gnomon
