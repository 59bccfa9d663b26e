#include <fmt/format.h>

#include <memory>

#include "cli/backtest.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/table.h"

namespace gnomon::cli {
namespace {

struct BacktestOptions {
  std::string ledger;
  std::string policy;
  std::string run;
  bool json = false;
};

boost::json::array to_array(const std::vector<BacktestDecision>& decisions) {
  boost::json::array array;
  for (const BacktestDecision& decision : decisions) {
    array.push_back({{"event_seq", decision.event_seq},
                     {"time", decision.time},
                     {"kind", decision.kind},
                     {"verdict", decision.verdict},
                     {"action", decision.action},
                     {"enforced", decision.enforced},
                     {"step", decision.step},
                     {"sites", boost::json::value_from(decision.sites)},
                     {"sentence", decision.sentence}});
  }
  return array;
}

void print_in_words(const BacktestResult& result, const std::string& run) {
  fmt::print("{}: {} events heard again; {} decisions recorded, {} made now, {} event(s) differ\n",
             run, result.events, result.recorded, result.replayed, result.differences.size());
  Table table({"", ">event", ">step", "kind", "verdict", "action", "sentence"});
  for (const BacktestDifference& difference : result.differences) {
    for (bool now : {false, true}) {
      for (const BacktestDecision& decision : now ? difference.replayed : difference.recorded) {
        table.add({now ? "+" : "-", std::to_string(decision.event_seq),
                   std::to_string(decision.step), decision.kind, decision.verdict, decision.action,
                   decision.sentence});
      }
    }
  }
  if (!table.empty()) fmt::print("{}", table.text());
  if (result.parting) {
    fmt::print("Compared up to event {} (step {}): {}; what follows cannot be known.\n",
               result.parting->event_seq, result.parting->step, result.parting->reason);
  }
}

void run_backtest(const BacktestOptions& options) {
  LedgerView ledger(options.ledger);
  RunRow run = ledger.run_named(options.run);
  decide::Policy policy = options.policy.empty()
                              ? decide::Policy::parse(run.policy, "the run's own policy")
                              : decide::Policy::load(options.policy);
  BacktestResult result = backtest(ledger, run, policy, options.ledger);
  std::string name = run.name + "/" + run.job_id;
  if (!options.json) {
    print_in_words(result, name);
    return;
  }
  boost::json::array differences;
  for (const BacktestDifference& difference : result.differences) {
    differences.push_back(
        {{"recorded", to_array(difference.recorded)}, {"replayed", to_array(difference.replayed)}});
  }
  boost::json::value parting;
  if (result.parting) {
    parting = {{"event_seq", result.parting->event_seq},
               {"step", result.parting->step},
               {"reason", result.parting->reason}};
  }
  fmt::print("{}", pretty_json(boost::json::object{{"run", name},
                                                   {"events", result.events},
                                                   {"decisions_recorded", result.recorded},
                                                   {"decisions_replayed", result.replayed},
                                                   {"differences", differences},
                                                   {"parting", parting}}));
}

}  // namespace

void add_backtest_command(CLI::App& app, Context&) {
  auto options = std::make_shared<BacktestOptions>();
  CLI::App* command = app.add_subcommand(
      "backtest", "Decides again from a ledger's events; prints the decisions that differ");
  command->add_option("--ledger", options->ledger, "ledger.sqlite")->required();
  command->add_option("--policy", options->policy, "Policy file; without it, the run's own");
  command->add_option("--run", options->run, "run-1, name or name/job; without it, the newest run");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Example:\n  gnomon backtest --ledger ledger.sqlite --policy stricter.toml --json");
  command->callback([options] { run_backtest(*options); });
}

}  // namespace gnomon::cli
