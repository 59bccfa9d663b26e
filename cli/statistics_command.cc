#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/json_output.h"
#include "cli/server.h"
#include "cli/statistics_table.h"
#include "protocol/json.h"

namespace gnomon::cli {
namespace {

constexpr size_t kStepsAtOnce = 1000;  // that the daemon sends

struct StatisticsOptions {
  ServerOptions server;
  std::string site;
  std::string tensor;
  std::string sort = "underflow";
  int64_t from = -1;
  int64_t to = -1;
};

// As a query's value.
std::string percent_encoded(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

std::string query_of(const StatisticsOptions& options) {
  std::string query = "?site=" + percent_encoded(options.site);
  if (!options.tensor.empty()) query += "&tensor=" + percent_encoded(options.tensor);
  if (options.from >= 0) query += fmt::format("&from={}", options.from);
  if (options.to >= 0) query += fmt::format("&to={}", options.to);
  if (options.from >= 0 || options.to >= 0) query += fmt::format("&limit={}", kStepsAtOnce);
  return query;
}

void show(const StatisticsOptions& options) {
  check_sort_key(options.sort);
  Server server(options.server.access);
  const std::string run = server.resolve_run(options.server.run);
  const boost::json::array reports =
      server.get_list("/v1/runs/" + run + "/statistics" + query_of(options));
  if (reports.size() >= kStepsAtOnce)
    fmt::print(stderr, "gnomon: these are the newest {} of the steps that you asked for\n",
               reports.size());
  if (options.server.json) {
    fmt::print("{}", pretty_json(reports));
    return;
  }
  if (reports.empty() && (options.from >= 0 || options.to >= 0)) {
    fmt::print(
        "{} has no tensor statistics of these steps; without --from and --to come the "
        "newest\n",
        options.server.run);
    return;
  }
  if (reports.empty()) {
    fmt::print(
        "{} has no tensor statistics; the trainer gathers them where its file has "
        "[statistics] with every = N\n",
        options.server.run);
    return;
  }
  for (const boost::json::value& value : reports) {
    const auto report = from_json<StatisticsReport>(boost::json::serialize(value));
    fmt::print("attempt {}, step {}, plan {}; a recipe with ? is a what if\n{}", report.attempt,
               report.step, report.plan_version, statistics_table(report.rows, options.sort));
  }
}

}  // namespace

void add_statistics_command(Command& app, Context&) {
  auto options = std::make_shared<StatisticsOptions>();
  Command* command = app.add_subcommand(
      "statistics", "What rounding does to a run's tensors, of the newest step that was looked at");
  add_url_option(*command, options->server);
  command->add_option("RUN", options->server.run, "run-1, a name, or name/job")->required();
  command->add_option("--site", options->site, "A glob over GEMM sites");
  command->add_option("--tensor", options->tensor, "Only this one")
      ->check(one_of({"input", "weight", "gradient", "output", "weight_gradient"}));
  command->add_option("--from", options->from, "First step, in place of the newest alone");
  command->add_option("--to", options->to, "Last step");
  command->add_option("--sort", options->sort, "site, tensor or the name of a number, worst first")
      ->capture_default_str();
  command->add_flag("--json", options->server.json, "Print JSON, with every number in full");
  command->footer("Example:\n  gnomon statistics demo --site '*.down_proj' --sort saturation");
  command->callback([options] { show(*options); });
}

}  // namespace gnomon::cli
