#include "controller/supervisor/state_repair.h"

#include <fmt/format.h>

#include <boost/json.hpp>
#include <map>

#include "base/errors.h"
#include "controller/metrics/totals.h"
#include "protocol/json_text.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_deletion.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

namespace json = boost::json;

// The place of the first difference; empty: there is none. Members that `saved` lacks were added by
// a later version than the one that wrote it.
std::string first_difference(const json::value& saved, const json::value& computed,
                             const std::string& place) {
  if (saved.is_object() && computed.is_object()) {
    for (const auto& member : saved.get_object()) {
      const json::value* other = computed.get_object().if_contains(member.key());
      if (other == nullptr) continue;
      const std::string name(member.key());
      const std::string found = first_difference(
          member.value(), *other, place.empty() ? name : fmt::format("{}.{}", place, name));
      if (!found.empty()) return found;
    }
    return {};
  }
  if (saved.is_array() && computed.is_array() &&
      saved.get_array().size() == computed.get_array().size()) {
    for (size_t i = 0; i < saved.get_array().size(); ++i) {
      const std::string found = first_difference(saved.get_array()[i], computed.get_array()[i],
                                                 fmt::format("{}[{}]", place, i));
      if (!found.empty()) return found;
    }
    return {};
  }
  return saved == computed ? std::string() : place;
}

// What is on record of a decision, to know whether this version decides as the recording one did.
std::map<int64_t, std::string> decisions_on_record(Connection& connection, int64_t run) {
  std::map<int64_t, std::string> decisions;
  Query rows = connection.query(
      "SELECT decision, event_seq, kind, verdict, action, step, sentence FROM decisions WHERE run "
      "= ?",
      run);
  while (rows.next()) {
    decisions[rows.integer(0)] =
        fmt::format("{} {} {} {} {} {}", rows.integer(1), rows.text(2), rows.text(3), rows.text(4),
                    rows.integer(5), rows.text(6));
  }
  return decisions;
}

// Where the state that is written down differs from what this version computes from the events;
// empty: nowhere, or the events do not tell: they are not all there any more, or another version of
// the core decided otherwise.
std::string difference_from_events(Connection& connection, int64_t run,
                                   const decide::Policy& policy) {
  const std::optional<ledger::StateRow> saved = ledger::load_state(connection, run);
  if (!saved) return {};
  const json::value written = parse_json_exactly(saved->body);
  // A state from before version 4 is converted as it is read, so it cannot be compared.
  if (!written.is_object() || written.get_object().contains("detector")) return {};
  std::map<int64_t, std::string> decisions = decisions_on_record(connection, run);
  bool as_recorded = true;
  std::string computed;
  const EachEvent each = [&](int64_t seq, const decide::State& state,
                             const std::vector<decide::Effect>& effects) {
    for (const decide::Effect& effect : effects) {
      const auto* made = std::get_if<decide::RecordDecision>(&effect);
      if (made == nullptr) continue;
      as_recorded &= decisions[made->decision] == fmt::format("{} {} {} {} {} {}", seq, made->kind,
                                                              made->verdict, made->action,
                                                              made->step, made->sentence);
    }
    if (seq == saved->seq) computed = decide::state_to_json(state);
  };
  try {
    rebuilt_state(connection, run, policy, UnknownPolicies::kRefused, each);
  } catch (const RunSetAside&) {
    return {};
  }
  if (!as_recorded || computed.empty()) return {};
  const std::string place = first_difference(written, parse_json_exactly(computed), "");
  return place.empty() ? place
                       : fmt::format(
                             "the member {} of the state of event {} is not what the "
                             "events lead to",
                             place, saved->seq);
}

StateFinding examine_state(Connection& connection, const RunRow& run) {
  StateFinding finding{run.id, run.label(), {}, false};
  const auto record = [&](const std::string& what) {
    finding.problem =
        fmt::format("the decision state of {} ({}): {}", run_name(run.id), finding.label, what);
  };
  try {
    const decide::Policy policy = decide::Policy::parse(run.policy, "its policy");
    const std::optional<StateOnRecord> known = state_on_record(connection, run.id, policy);
    finding.can_serve = true;
    if (known && !known->rebuilt_because.empty()) {
      record(known->rebuilt_because);
    } else if (const std::string what = difference_from_events(connection, run.id, policy);
               !what.empty()) {
      record(what);
    }
  } catch (const RunSetAside& error) {
    record(error.reason());
  } catch (const Error& error) {
    record(error.what());
  }
  return finding;
}

// As far as possible from the run's first event; else from what gnomond would go on with.
StateOnRecord best_state(Connection& connection, const RunRow& run, bool can_serve,
                         std::string& how) {
  const decide::Policy policy = decide::Policy::parse(run.policy, "its policy");
  how = "rebuilt from its events";
  try {
    return rebuilt_state(connection, run.id, policy);
  } catch (const RunSetAside&) {
    if (can_serve) {
      how = "brought up to date";
      return state_on_record(connection, run.id, policy).value();
    }
  }
  how = "rebuilt from its events, the oldest policy on record taken for those that are not";
  return rebuilt_state(connection, run.id, policy, UnknownPolicies::kGuessed);
}

void save(Connection& connection, int64_t run, const StateOnRecord& known) {
  ledger::save_state(connection, run, {known.seq, decide::state_to_json(known.state)});
  StepTotals totals;
  for (const StepRow& step : known.uncounted) totals.add(step);
  totals.write(connection, run);
}

std::vector<RunRow> runs_with_states(Connection& connection) {
  std::vector<RunRow> runs;
  for (const int64_t id : ledger::run_ids(connection)) {
    const std::optional<RunRow> run = ledger::load_run(connection, id);
    if (run && run->state != ledger::kDeleting) runs.push_back(*run);
  }
  return runs;
}

}  // namespace

std::vector<StateFinding> examine_states(Connection& connection) {
  std::vector<StateFinding> findings;
  for (const RunRow& run : runs_with_states(connection)) {
    // A daemon may be writing: rows and state are to be of one moment.
    connection.database().exec("BEGIN");
    findings.push_back(examine_state(connection, run));
    connection.database().exec("COMMIT");
  }
  return findings;
}

std::vector<StateRepair> repair_states(Connection& connection, double now) {
  std::vector<StateRepair> repairs;
  for (const RunRow& run : runs_with_states(connection)) {
    const StateFinding finding = examine_state(connection, run);
    StateRepair repair{run.id, finding.label, {}, {}};
    if (!finding.problem.empty()) {
      try {
        std::string how;
        const StateOnRecord known = best_state(connection, run, finding.can_serve, how);
        save(connection, run.id, known);
        repair.done = fmt::format("{}: {}, up to event {}", finding.problem, how, known.seq);
        ledger::insert_audit(connection, now, run.id, "state_rebuilt", repair.done);
      } catch (const Error& error) {
        const auto* set_aside = dynamic_cast<const RunSetAside*>(&error);
        repair.failed =
            fmt::format("{}; {}", finding.problem, set_aside ? set_aside->reason() : error.what());
      }
    }
    repairs.push_back(std::move(repair));
  }
  return repairs;
}

}  // namespace gnomon
