// `gnomon runs delete`: a run that has ended, with all that is on record of it.
#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "cli/commands.h"
#include "cli/printing.h"
#include "cli/server.h"

namespace gnomon::cli {
namespace {

constexpr auto kLongest = std::chrono::minutes(30);  // of a run with very many rows

void delete_run(const ServerOptions& options, bool sure) {
  Server server(options.access);
  const std::string run = server.resolve_run(options.run);
  if (!sure) {
    throw ConfigError("", 0, "--yes", "",
                      fmt::format("--yes, when everything on record of {} ({}) is to go: a backup "
                                  "alone brings it back",
                                  run, options.run));
  }
  server.erase("/v1/runs/" + run, kLongest);
  print_line("{} is deleted; the audit log says who did it.\n", run);
}

}  // namespace

void add_runs_delete_command(Command& runs) {
  auto options = std::make_shared<ServerOptions>();
  auto sure = std::make_shared<bool>(false);
  Command* command =
      runs.add_subcommand("delete", "Deletes a run that has ended, with all that is on record");
  command->add_option("RUN", options->run, "run-1, a name (its newest job) or name/job")
      ->required();
  command->add_flag("--yes", *sure, "Yes, delete it");
  add_url_option(*command, *options);
  command->footer("Example:\n  gnomon runs delete demo/1 --yes");
  command->callback([options, sure] { delete_run(*options, *sure); });
}

}  // namespace gnomon::cli
