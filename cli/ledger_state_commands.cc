// `gnomon ledger check`, and `gnomon ledger repair`.
#include "cli/ledger_state_commands.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>

#include "base/wall_clock.h"
#include "cli/json_output.h"
#include "cli/printing.h"
#include "cli/user_name.h"
#include "controller/supervisor/state_repair.h"
#include "storage/ledger.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_integrity.h"
#include "storage/ledger_lock.h"
#include "storage/ledger_migrations.h"
#include "storage/rows.h"

namespace gnomon::cli {
namespace {

struct StateOptions {
  std::string ledger;
  bool json = false;
};

std::string in_words(const StateFinding& state) {
  return fmt::format("{}; {}", state.problem,
                     state.can_serve
                         ? "gnomond goes on with the run, `gnomon ledger repair` writes down what "
                           "the events lead to"
                         : "gnomond sets the run aside; `gnomon ledger repair` tries more, or "
                           "restore a backup");
}

constexpr size_t kBadValuesMost = 10;

// Values and states are read once the rest is known to be good.
std::vector<StateFinding> states_of(const StateOptions& options, LedgerHealth& health) {
  std::vector<StateFinding> states;
  if (!health.good() || health.version != kLedgerVersion) return states;
  Connection connection(open_for_looking(resolve_ledger(options.ledger)));
  health.problems = ledger::bad_values(connection, kBadValuesMost);
  if (!health.good()) return states;
  states = examine_states(connection);
  for (const StateFinding& state : states) {
    if (!state.problem.empty()) health.problems.push_back(in_words(state));
  }
  return states;
}

void check(const StateOptions& options, Context& context) {
  LedgerHealth health;
  size_t states = 0;
  try {
    health = examine_ledger(options.ledger);
    states = states_of(options, health).size();
  } catch (const LedgerError& error) {
    fmt::print(stderr, "gnomon: {}\n", error.what());
    context.status = kExitBadInput;
    return;
  }
  if (!health.good()) context.status = kExitFailure;
  if (options.json) {
    boost::json::object json;
    json["ok"] = health.good();
    json["bytes"] = health.bytes;
    json["version"] = health.version;
    json["states"] = states;
    json["problems"] = boost::json::array(health.problems.begin(), health.problems.end());
    json["audit_rows"] = health.audit.rows;
    json["audit_head"] = fmt::format("{}:{}", health.audit.last_id, health.audit.head);
    fmt::print("{}", pretty_json(json));
    return;
  }
  for (const std::string& problem : health.problems) {
    print_line(stderr, "gnomon: {}: {}\n", options.ledger, problem);
  }
  if (health.good()) {
    fmt::print(
        "{}: good; version {}, {:.1f} MiB, states of runs: {}, rows of audit: {}, head {}:{}\n",
        options.ledger, health.version, static_cast<double>(health.bytes) / (1 << 20), states,
        health.audit.rows, health.audit.last_id, health.audit.head);
  }
}

void print_repairs(const std::vector<StateRepair>& repairs, bool json) {
  if (json) {
    boost::json::array rows;
    for (const StateRepair& repair : repairs) {
      rows.push_back({{"run", run_name(repair.run)},
                      {"label", repair.label},
                      {"done", repair.done},
                      {"failed", repair.failed}});
    }
    fmt::print("{}", pretty_json(rows));
    return;
  }
  int64_t untouched = 0;
  for (const StateRepair& repair : repairs) {
    if (!repair.done.empty()) print_line("{}\n", repair.done);
    if (!repair.failed.empty()) {
      print_line(stderr,
                 "gnomon: {}\ngnomon: nothing of {} was changed: restore a backup, or end the run "
                 "(`gnomon runs end`) and delete it (`gnomon runs delete`)\n",
                 repair.failed, run_name(repair.run));
    }
    if (repair.done.empty() && repair.failed.empty()) ++untouched;
  }
  fmt::print("{} of {} states fitted and were left alone\n", untouched, repairs.size());
}

std::vector<StateRepair> repair_file(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) {
    throw LedgerError(fmt::format("there is no ledger {}", file.string()), SQLITE_CANTOPEN);
  }
  std::vector<StateRepair> repairs;
  LedgerOptions opened;
  opened.file = file;
  Ledger ledger(opened);
  ledger.write([&](LedgerTransaction& transaction) {
    const ledger::AuditedBy by(transaction.connection(), user_name());
    repairs = repair_states(transaction.connection(), now_seconds());
  });
  return repairs;
}

void repair(const StateOptions& options, Context& context) {
  try {
    const std::vector<StateRepair> repairs = repair_file(options.ledger);
    print_repairs(repairs, options.json);
    const bool failed =
        std::ranges::any_of(repairs, [](const StateRepair& one) { return !one.failed.empty(); });
    if (failed) context.status = kExitFailure;
  } catch (const LedgerError& error) {
    fmt::print(stderr, "gnomon: {}\n", error.what());
    context.status = kExitBadInput;
  }
}

}  // namespace

void add_ledger_state_commands(Command& ledger, Context& context) {
  auto options = std::make_shared<StateOptions>();
  Command* checked = ledger.add_subcommand(
      "check", "Reads every page, foreign key, value and hash of a ledger, and every run's state");
  checked->add_option("FILE,--ledger", options->ledger, "ledger.sqlite; gnomond may be writing it")
      ->required();
  checked->add_flag("--json", options->json, "Print JSON");
  checked->footer(
      "A run's decision state is a cache of its events. One that cannot be read, or is not what "
      "the events\nlead to, is a problem; `gnomon ledger repair` rebuilds it.\n\n"
      "Example:\n  gnomon ledger check --ledger ledger.sqlite\n\n"
      "Exit status: 0 good; 1 damaged, a value that its column may not have, or a state that does "
      "not fit;\n2 no ledger, or it cannot be read.");
  checked->callback([options, &context] { check(*options, context); });

  Command* repaired = ledger.add_subcommand(
      "repair", "Rebuilds the decision states of runs that do not fit their events");
  repaired->add_option("FILE,--ledger", options->ledger, "ledger.sqlite; gnomond must be stopped")
      ->required();
  repaired->add_flag("--json", options->json, "Print JSON: a row for each run");
  repaired->footer(
      "Each state that `gnomon ledger check` complains of is computed again from the run's first "
      "event and\nwritten down; the audit log says so (state_rebuilt). Nothing else is changed. "
      "Make a copy first\n(`gnomon ledger backup`). Damaged pages are not mended: restore a "
      "backup.\n\n"
      "Example:\n  systemctl stop gnomond\n  gnomon ledger repair /var/lib/gnomon/ledger.sqlite\n"
      "  systemctl start gnomond\n\n"
      "Exit status: 0 every state fits now; 1 one cannot be rebuilt; 2 no ledger, or a daemon has "
      "it.");
  repaired->callback([options, &context] { repair(*options, context); });
}

}  // namespace gnomon::cli
