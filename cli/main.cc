// `gnomon`: what an operator does with runs, policies, checkpoints and ledgers from the command
// line.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/named_file.h"
#include "base/sleeping_threads.h"
#include "base/version.h"
#include "cli/commands.h"
#include "cli/printing.h"
#include "protocol/client.h"

namespace {

using gnomon::cli::kExitBadInput;
using gnomon::cli::kExitFailure;

int fail(int status, const char* what) {
  gnomon::cli::print_line(stderr, "gnomon: {}\n", what);
  return status;
}

void add_commands(CLI::App& app, gnomon::cli::Context& context) {
  using namespace gnomon::cli;
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       fmt::format("gnomon {} ({}, {}, {})", gnomon::kVersion, gnomon::kRevision,
                                   gnomon::kBuildType, gnomon::kCompiler));
  add_server_commands(app, context);
  add_watch_command(app, context);
  add_ready_command(app, context);
  add_override_command(app, context);
  add_notify_commands(app, context);
  add_ledger_commands(app, context);
  add_ledger_file_commands(app, context);
  add_audit_commands(app, context);
  add_token_commands(app, context);
  add_backtest_command(app, context);
  add_simulate_command(app, context);
  add_data_commands(app, context);
  add_replay_command(app, context);
  add_inspect_command(app, context);
  add_statistics_command(app, context);
  add_checkpoint_commands(app, context);
  add_policy_commands(app, context);
  add_plan_commands(app, context);
  add_formats_commands(app, context);
  add_conformance_commands(app, context);
  add_bench_commands(app, context);
  app.footer(
      "Exit status: 0 done, 1 failed, 2 bad input. Each command's --help has an example.\n"
      "Example:\n  gnomon watch demo");
}

// Whether a system call failed because of the path that the user named, not because of the machine.
bool names_the_wrong_path(int error_number) {
  for (int wrong : {ENOENT, ENOTDIR, EISDIR, ENAMETOOLONG, ELOOP}) {
    if (error_number == wrong) return true;
  }
  return false;
}

// The innermost command that was recognised.
const CLI::App& innermost(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.back());
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<const CLI::App*> known =
      command.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
  const std::vector<std::string> extra = command.remaining();
  // An option that is wrong, where a command may stand but need not.
  const bool optional = command.get_require_subcommand_min() == 0;
  if (known.empty() || (optional && (extra.empty() || extra.front().starts_with('-')))) {
    return error.what();
  }
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const CLI::App* one : known) names.push_back(one->get_name());
  return fmt::format("{}: not accepted; expected one of {}",
                     extra.empty() ? "no command" : "command = " + extra.front(),
                     fmt::join(names, ", "));
}

int run(int argc, char** argv) {
  CLI::App app("Watches and steers FP8 pretraining runs that are checked against a BF16 shadow.",
               "gnomon");
  gnomon::cli::Context context;
  add_commands(app, context);
  std::vector<std::string> arguments(argv + 1, argv + argc);
  gnomon::cli::drop_double_dash(arguments);
  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    return fail(kExitBadInput, explain(app, error).c_str());
  }
  return context.status;
}

}  // namespace

int main(int argc, char** argv) {
  gnomon::make_waiting_threads_sleep(argv);
  try {
    return run(argc, argv);
  } catch (const gnomon::ConfigError& error) {
    return fail(kExitBadInput, error.what());
  } catch (const gnomon::FormatError& error) {
    return fail(kExitBadInput, error.what());
  } catch (const gnomon::UnfitFile& error) {
    return fail(kExitBadInput, error.what());
  } catch (const gnomon::ApiError& error) {
    bool ours = error.status() >= 400 && error.status() < 500;
    return fail(ours ? kExitBadInput : kExitFailure, error.what());
  } catch (const gnomon::SystemError& error) {
    return fail(names_the_wrong_path(error.error_number()) ? kExitBadInput : kExitFailure,
                error.what());
  } catch (const std::exception& error) {
    return fail(kExitFailure, error.what());
  }
}
