#include "cli/program.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
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

// `formats cast` takes every word that is no option of its own as a value, so "--" in front of
// negative ones is accepted and means nothing; the parser would hand what follows to the parent
// command.
void drop_double_dash(std::vector<std::string>& arguments) {
  if (arguments.size() < 2 || arguments[0] != "formats" || arguments[1] != "cast") return;
  std::erase(arguments, "--");
}

int parse_and_run(int argc, char** argv, const char* description,
                  const std::function<void(Command&, Context&)>& add) {
  Command app(description, "gnomon");
  Context context;
  app.require_subcommand(1);
  app.set_version_flag(
      fmt::format("gnomon {} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler));
  add(app, context);
  app.footer(
      "Exit status: 0 done, 1 failed, 2 bad input. Each command's --help has an example.\n"
      "Example:\n  gnomon watch demo");
  std::vector<std::string> arguments(argv + 1, argv + argc);
  drop_double_dash(arguments);
  return app.parse(std::move(arguments), kExitBadInput).value_or(context.status);
}

}  // namespace

int run_program(int argc, char** argv, const char* description,
                const std::function<void(Command&, Context&)>& add) {
  try {
    return parse_and_run(argc, argv, description, add);
  } catch (const ConfigError& error) {
    for (const ConfigError& part : error.parts()) fail(kExitBadInput, part.what());
    return error.parts().empty() ? fail(kExitBadInput, error.what()) : kExitBadInput;
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

void add_sibling(Command& app, const Sibling& sibling) {
  for (const Sibling::Entry& command : sibling.commands) {
    app.add_subcommand(command.name, command.what)
        ->group(fmt::format("Subcommands of {}", sibling.program));
  }
}

void start_sibling(const std::vector<Sibling>& siblings, char** argv) {
  if (argv[0] == nullptr || argv[1] == nullptr) return;
  const std::string_view word = argv[1];
  for (const Sibling& sibling : siblings) {
    if (std::ranges::find(sibling.commands, word, &Sibling::Entry::name) == sibling.commands.end())
      continue;
    const std::filesystem::path program =
        std::filesystem::read_symlink("/proc/self/exe").parent_path() / sibling.program;
    ::execv(program.c_str(), argv);
    const std::string why = std::strerror(errno);
    const std::filesystem::path build = program.parent_path().parent_path();
    const std::string mend =
        std::filesystem::exists(build / "CMakeCache.txt")
            ? fmt::format("Build it: cmake --build {} --target {}", build.string(), sibling.program)
            : std::string("Install it beside gnomon");
    throw Error(fmt::format("{} is a command of {}, which cannot be started: {}: {}. {}", word,
                            sibling.program, program.string(), why, mend));
  }
}

}  // namespace gnomon::cli
