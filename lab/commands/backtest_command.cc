#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "cli/json_output.h"
#include "cli/printing.h"
#include "cli/table.h"
#include "lab/backtest/backtest.h"
#include "lab/commands/commands.h"

namespace gnomon::cli {
namespace {

constexpr size_t kDifferencesShown = 40;  // decisions, in words; JSON has all
constexpr size_t kFirstShown = 3;

struct BacktestOptions {
  std::string ledger;
  std::vector<std::string> policies;
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

boost::json::object to_object(const BacktestSide& side) {
  return {{"alarms", side.alarms},
          {"verdicts", boost::json::value_from(side.verdicts)},
          {"actions", boost::json::value_from(side.actions)},
          {"windows_measured", side.windows_measured},
          {"windows_not_in_the_ledger", side.windows_unmeasured},
          {"windows_skipped", side.windows_skipped},
          {"replays", side.replays},
          {"replays_not_in_the_ledger", side.replays_unanswered},
          {"verification_seconds", json_number(side.verification_seconds)},
          {"seconds_estimated", json_number(side.seconds_estimated)},
          {"steps_lost", side.steps_lost},
          {"net_speedup", json_optional(side.net_speedup)}};
}

boost::json::object to_object(const BacktestResult& result, const std::string& policy) {
  boost::json::array differences;
  for (const BacktestDifference& difference : result.differences) {
    differences.push_back(
        {{"recorded", to_array(difference.recorded)}, {"replayed", to_array(difference.replayed)}});
  }
  boost::json::value first;
  if (result.first) {
    first = {{"event_seq", result.first->event_seq},
             {"step", result.first->step},
             {"recorded", boost::json::value_from(result.first->recorded)},
             {"replayed", boost::json::value_from(result.first->replayed)}};
  }
  boost::json::value estimate;
  if (result.estimate) {
    estimate = {{"alarm_step", result.estimate->alarm_step},
                {"verdict", result.estimate->verdict},
                {"action", result.estimate->action},
                {"steps_lost", result.estimate->steps_lost},
                {"net_speedup", json_optional(result.estimate->net_speedup)}};
  }
  boost::json::value parting;
  if (result.parting) {
    parting = {{"event_seq", result.parting->event_seq},
               {"step", result.parting->step},
               {"reason", result.parting->reason},
               {"steps_lost", json_optional(result.parting->steps_lost)},
               {"estimate", estimate},
               {"alarms_after", result.alarms_after}};
  }
  return {{"policy", policy},
          {"events", result.events},
          {"step", result.step},
          {"decisions_recorded", result.recorded},
          {"decisions_replayed", result.replayed},
          {"differences", differences},
          {"first_difference", first},
          {"parting", parting},
          {"shifts", boost::json::value_from(result.shifts)},
          {"recorded", to_object(result.recorded_side)},
          {"replayed", to_object(result.replayed_side)},
          {"speedup", json_number(result.speedup)},
          {"speedup_measured", result.speedup_measured},
          {"expected_net_speedup",
           {{"recorded", json_optional(result.expected_recorded)},
            {"replayed", json_optional(result.expected_replayed)}}},
          {"not_as_recorded_seq", json_optional(result.not_as_recorded_seq)}};
}

std::string ratio(const std::optional<double>& value) {
  return value ? fmt::format("{:.3f}", *value) : "-";
}

std::string verdicts_in_words(const BacktestSide& side) {
  std::string text;
  for (const auto& [verdict, count] : side.verdicts) {
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", verdict,
                        count > 1 ? fmt::format(" ×{}", count) : "");
  }
  return text.empty() ? "none" : text;
}

void print_sides(const BacktestResult& result) {
  const BacktestSide &was = result.recorded_side, &now = result.replayed_side;
  Table table({"", "recorded", "this policy"});
  const auto row = [&](const char* name, auto value) {
    table.add({name, fmt::format("{}", value(was)), fmt::format("{}", value(now))});
  };
  row("alarms", [](const BacktestSide& s) { return s.alarms; });
  row("verdicts", verdicts_in_words);
  row("actions", [](const BacktestSide& s) {
    return s.actions.empty() ? std::string("none") : fmt::format("{}", fmt::join(s.actions, ", "));
  });
  row("windows measured", [](const BacktestSide& s) { return s.windows_measured; });
  row("  not in the ledger", [](const BacktestSide& s) { return s.windows_unmeasured; });
  row("  skipped", [](const BacktestSide& s) { return s.windows_skipped; });
  row("replays", [](const BacktestSide& s) { return s.replays; });
  row("  not in the ledger", [](const BacktestSide& s) { return s.replays_unanswered; });
  row("verification, seconds", [](const BacktestSide& s) {
    return fmt::format("{:.1f}{}", s.verification_seconds,
                       s.seconds_estimated > 0
                           ? fmt::format(" ({:.1f} of them estimated)", s.seconds_estimated)
                           : "");
  });
  row("steps rolled back", [](const BacktestSide& s) { return s.steps_lost; });
  const std::string assumed =
      result.speedup_measured ? "" : fmt::format(", with an assumed {:.2f}", result.speedup);
  table.add({"net speed-up" + assumed, ratio(was.net_speedup), ratio(now.net_speedup)});
  table.add({"expected by economics" + assumed, ratio(result.expected_recorded),
             ratio(result.expected_replayed)});
  fmt::print("{}", table.text());
}

void print_differences(const BacktestResult& result) {
  Table table({"", ">event", ">step", "kind", "verdict", "action", "sentence"});
  size_t shown = 0;
  size_t left_out = 0;
  for (const BacktestDifference& difference : result.differences) {
    for (bool now : {false, true}) {
      for (const BacktestDecision& decision : now ? difference.replayed : difference.recorded) {
        if (shown >= kDifferencesShown) {
          ++left_out;
          continue;
        }
        ++shown;
        table.add({now ? "+" : "-", std::to_string(decision.event_seq),
                   std::to_string(decision.step), decision.kind, decision.verdict, decision.action,
                   decision.sentence});
      }
    }
  }
  if (!table.empty()) fmt::print("{}", table.text());
  if (left_out > 0) fmt::print("... and {} more (--json has all)\n", left_out);
}

void print_first(const BacktestFirst& first) {
  print_line("First difference at event {} (step {}):\n", first.event_seq, first.step);
  const auto print = [](const char* who, const std::vector<std::string>& list) {
    for (size_t i = 0; i < std::min(list.size(), kFirstShown); ++i)
      print_line("  {}: {}\n", who, list[i]);
    if (list.size() > kFirstShown)
      print_line("  {}: and {} more\n", who, list.size() - kFirstShown);
  };
  print("recorded", first.recorded);
  print("this policy", first.replayed);
  if (first.recorded.empty() && first.replayed.empty()) print_line("  another order\n");
}

void print_in_words(const BacktestResult& result, const std::string& run,
                    const std::string& policy) {
  print_line(
      "{} under {}: {} events replayed; {} decisions recorded, {} made now, {} event(s) "
      "differ\n",
      run, policy, result.events, result.recorded, result.replayed, result.differences.size());
  if (result.not_as_recorded_seq) {
    print_line(
        "The run's own policy, decided again, differs from the ledger at event {}: it was decided "
        "by another version of gnomond, or under another policy than the run's newest. What the "
        "recorded side's windows and costs are here is what this version makes of it.\n",
        *result.not_as_recorded_seq);
  }
  if (result.first) print_first(*result.first);
  for (const std::string& shift : result.shifts)
    print_line("Carried out as in the record: {}.\n", shift);
  print_line("{} step {}:\n", result.parting ? "Compared up to" : "Compared to the end,",
             result.step);
  print_sides(result);
  print_differences(result);
  if (!result.parting) return;
  print_line("From event {} (step {}) on the recorded run is no guide: {}.",
             result.parting->event_seq, result.parting->step, result.parting->reason);
  if (result.parting->steps_lost) {
    print_line(
        " That loses {} steps, which the table has, with the policy's restart_steps; what "
        "it would have gained is not known.",
        *result.parting->steps_lost);
  }
  if (result.estimate) {
    const BacktestEstimate& like = *result.estimate;
    print_line(
        " An estimate: the record's alarm at step {} came to {} and {} {} steps later; if this one "
        "does, {} steps are lost and the net speed-up is {} then.",
        like.alarm_step, like.verdict, like.action, like.steps_to_rollback, like.steps_lost,
        ratio(like.net_speedup));
  }
  print_line(
      " Along the rest of the recorded run this policy raises {} alarm(s), with nothing "
      "carried out.\n",
      result.alarms_after);
}

void run_backtest(const BacktestOptions& options) {
  LedgerView ledger(options.ledger);
  RunRow run = ledger.run_named(options.run);
  std::vector<std::pair<std::string, decide::Policy>> policies;
  for (const std::string& file : options.policies) {
    policies.emplace_back(file, decide::Policy::load(file));
  }
  if (policies.empty()) {
    policies.emplace_back("its own policy",
                          decide::Policy::parse(run.policy, "the run's own policy"));
  }
  const std::string name = run.name + "/" + run.job_id;
  boost::json::array results;
  for (const auto& [file, policy] : policies) {
    const BacktestResult result = backtest(ledger, run, policy, options.ledger);
    if (options.json) {
      results.push_back(to_object(result, file));
    } else {
      if (file != policies.front().first) fmt::print("\n");
      print_in_words(result, name, file);
    }
  }
  if (options.json) {
    fmt::print("{}", pretty_json(boost::json::object{{"run", name}, {"policies", results}}));
  }
}

}  // namespace

void add_backtest_command(Command& app, Context&) {
  auto options = std::make_shared<BacktestOptions>();
  Command* command = app.add_subcommand(
      "backtest",
      "Decides again from a ledger's events; prints what would have differed, and its cost");
  command->add_option("--ledger", options->ledger, "ledger.sqlite")->required();
  command->add_option("--policy", options->policies,
                      "Policy file, may be given several times; without it, the run's own");
  command->add_option("--run", options->run, "run-1, name or name/job; without it, the newest run");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Example:\n  gnomon backtest --ledger ledger.sqlite --policy stricter.toml --policy "
      "faster.toml");
  command->callback([options] { run_backtest(*options); });
}

}  // namespace gnomon::cli
