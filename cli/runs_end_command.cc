// `gnomon runs end`: a run whose trainer is gone for good.
#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/server.h"
#include "cli/user_name.h"
#include "protocol/json.h"

namespace gnomon::cli {
namespace {

struct EndOptions {
  ServerOptions server;
  EndRequest request;
};

void end_run(const EndOptions& options) {
  if (options.request.owner.empty()) {
    throw ConfigError("", 0, "--owner", "", "who says so: your user name is not known");
  }
  Server server(options.server.access);
  const std::string run = server.resolve_run(options.server.run);
  server.post("/v1/runs/" + run + "/end", to_json(options.request));
  fmt::print(
      "{} has failed, says the record; a trainer that comes back and begins an attempt revives "
      "it.\n",
      run);
}

}  // namespace

void add_runs_end_command(Command& runs) {
  auto options = std::make_shared<EndOptions>();
  options->request.owner = user_name();
  Command* command =
      runs.add_subcommand("end", "Ends a run whose trainer is gone for good: it has failed");
  command->add_option("RUN", options->server.run, "run-1, a name (its newest job) or name/job")
      ->required();
  command->add_option("--reason", options->request.reason, "Why, for the audit log")->required();
  command->add_option("--owner", options->request.owner, "Who says so")->capture_default_str();
  add_url_option(*command, options->server);
  command->footer(
      "A trainer that is still there is ended by `gnomon override RUN stop --reason WHY`; this is "
      "refused "
      "until\n"
      "it has been silent for two minutes.\n\n"
      "Example:\n  gnomon runs end demo/1 --reason \"the node is gone\"");
  command->callback([options] { end_run(*options); });
}

}  // namespace gnomon::cli
