#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/paths.h"
#include "cli/printing.h"
#include "cli/report.h"
#include "cli/summary.h"

namespace gnomon::cli {
namespace {

struct HistoryOptions {
  std::string ledger;
  std::string run;
  std::string out;
  std::string expect;
  std::optional<double> wall_seconds;
  bool json = false;
};

void add_ledger_options(Command& command, HistoryOptions& options) {
  command.add_option("--ledger", options.ledger, "ledger.sqlite; gnomond may be writing it")
      ->required();
  CommandOption* run = command.add_option(
      "RUN", options.run, "run-1, a name (its newest job) or name/job; without it, the newest run");
  command.add_option("--run", options.run, "The same")->excludes(run);
}

void summarize_run(const HistoryOptions& options, Context& context) {
  RunSummary summary = summarize(load_history(LedgerView(options.ledger), options.run));
  summary.wall_seconds = options.wall_seconds.value_or(summary.wall_seconds);
  std::vector<std::string> unmet;
  if (!options.expect.empty()) unmet = unmet_expectations(summary, options.expect);
  std::string json = summary_to_json(summary);
  if (!options.out.empty()) write_output(options.out, json);
  if (options.json) {
    fmt::print("{}", json);
  } else {
    print_line("{}\n", summary_in_words(summary));
  }
  for (const std::string& sentence : unmet) print_line(stderr, "gnomon: {}\n", sentence);
  if (!unmet.empty()) context.status = kExitFailure;
}

void report_run(const HistoryOptions& options) {
  RunHistory history = load_history(LedgerView(options.ledger), options.run);
  write_output(options.out, report_html(history, summarize(history)));
  fmt::print("{}\n", options.out);
}

}  // namespace

void add_ledger_commands(Command& app, Context& context) {
  auto options = std::make_shared<HistoryOptions>();
  Command* summary =
      app.add_subcommand("summary", "A run in a few numbers: what was caught, blamed, done, lost");
  add_ledger_options(*summary, *options);
  summary->add_option("--out", options->out, "Also write the JSON here");
  summary->add_option(
      "--expect", options->expect,
      "none, fp8, spike or bitflip: status 1 unless what that fault should lead to has happened");
  summary
      ->add_option(
          "--wall-seconds", options->wall_seconds,
          "As measured outside, in place of the time from the run's registration to its end")
      ->check(not_negative());
  summary->add_flag("--json", options->json, "Print JSON");
  summary->footer(
      "Example:\n  gnomon summary demo --ledger ledger.sqlite --expect fp8 --out summary.json");
  summary->callback([options, &context] { summarize_run(*options, context); });

  Command* report = app.add_subcommand("report", "A run as one self-contained HTML file");
  add_ledger_options(*report, *options);
  report->add_option("--out", options->out, "File to write")->required();
  report->footer("Example:\n  gnomon report demo --ledger ledger.sqlite --out report.html");
  report->callback([options] { report_run(*options); });
}

}  // namespace gnomon::cli
