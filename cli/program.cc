#include "cli/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/named_file.h"
#include "base/version.h"
#include "cli/printing.h"
#include "protocol/client.h"

namespace gnomon::cli {
namespace {

int fail(int status, const char* what) {
  print_line(stderr, "gnomon: {}\n", what);
  return status;
}

// True when a system call failed by the path that the user named, not by the machine.
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

// Letters to insert, remove or replace until one word is the other.
size_t edits_between(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= one.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= other.size(); ++j) {
      const size_t replaced = diagonal + (one[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

// "; did you mean NAME?" where a name is a slip or two away, else nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  const size_t most = word.size() < 5 ? 1 : 2;
  const auto nearest = std::ranges::min_element(
      names, {}, [&](const std::string& name) { return edits_between(word, name); });
  if (nearest == names.end() || edits_between(word, *nearest) > most) return "";
  return fmt::format("; did you mean {}?", *nearest);
}

std::string wrong_option(const CLI::App& command, const std::string& word, const char* what) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return what + did_you_mean(word.substr(0, word.find('=')), names);
}

std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = innermost(app);
  const std::vector<const CLI::App*> known =
      command.get_subcommands([](const CLI::App* one) { return !one->get_name().empty(); });
  const std::vector<std::string> extra = command.remaining();
  // An option that is wrong, where a command may stand but need not.
  const bool optional = command.get_require_subcommand_min() == 0;
  if (known.empty() || (optional && (extra.empty() || extra.front().starts_with('-')))) {
    return wrong_option(command, extra.empty() ? "" : extra.front(), error.what());
  }
  std::vector<std::string> names;
  names.reserve(known.size());
  for (const CLI::App* one : known) names.push_back(one->get_name());
  return fmt::format("{}: not accepted; expected one of {}{}",
                     extra.empty() ? "no command" : "command = " + extra.front(),
                     fmt::join(names, ", "),
                     extra.empty() ? "" : did_you_mean(extra.front(), names));
}

// `formats cast` takes every word that is no option of its own as a value, so "--" in front of
// negative ones is accepted and means nothing; CLI11 would hand what follows to the parent command.
void drop_double_dash(std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments[0] != "formats" || arguments[1] != "cast") return;
  std::erase(arguments, "--");
}

int parse_and_run(int argc, char** argv, const char* description,
                  const std::function<void(CLI::App&, Context&)>& add) {
  CLI::App app(description, "gnomon");
  Context context;
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("gnomon {} ({}, {}, {})", kVersion, kRevision,
                                                kBuildType, kCompiler));
  add(app, context);
  app.footer(
      "Exit status: 0 done, 1 failed, 2 bad input. Each command's --help has an example.\n"
      "Example:\n  gnomon watch demo");
  std::vector<std::string> arguments(argv + 1, argv + argc);
  drop_double_dash(arguments);
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

int run_program(int argc, char** argv, const char* description,
                const std::function<void(CLI::App&, Context&)>& add) {
  try {
    return parse_and_run(argc, argv, description, add);
  } catch (const ConfigError& error) {
    return fail(kExitBadInput, error.what());
  } catch (const FormatError& error) {
    return fail(kExitBadInput, error.what());
  } catch (const UnfitFile& error) {
    return fail(kExitBadInput, error.what());
  } catch (const ApiError& error) {
    bool ours = error.status() >= 400 && error.status() < 500;
    return fail(ours ? kExitBadInput : kExitFailure, error.what());
  } catch (const SystemError& error) {
    return fail(names_the_wrong_path(error.error_number()) ? kExitBadInput : kExitFailure,
                error.what());
  } catch (const std::exception& error) {
    return fail(kExitFailure, error.what());
  }
}

void add_sibling(CLI::App& app, const Sibling& sibling) {
  for (const Sibling::Command& command : sibling.commands) {
    app.add_subcommand(command.name, command.what)
        ->group(fmt::format("Subcommands of {}", sibling.program));
  }
}

void start_sibling(const std::vector<Sibling>& siblings, char** argv) {
  if (argv[0] == nullptr || argv[1] == nullptr) return;
  const std::string_view word = argv[1];
  for (const Sibling& sibling : siblings) {
    if (std::ranges::find(sibling.commands, word, &Sibling::Command::name) ==
        sibling.commands.end())
      continue;
    const std::filesystem::path program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / sibling.program;
    ::execv(program.c_str(), argv);
    throw Error(fmt::format(
        "{} is a command of {}, which cannot be started: {}: {}. Install it beside gnomon, or "
        "build it: cmake --build --preset release --target {}",
        word, sibling.program, program.string(), std::strerror(errno), sibling.program));
  }
}

}  // namespace gnomon::cli
