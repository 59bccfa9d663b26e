// The programs that `gnomon` starts for some of its commands.
#include <gmock/gmock.h>

#include <filesystem>
#include <map>
#include <regex>
#include <sstream>

#include "base/files.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {
namespace {

using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;

EndedProcess run(const std::filesystem::path& program, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), program.string());
  return test::run_to_end(arguments, {.errors_apart = true});
}

// The commands of one group of a --help, with what they do.
std::map<std::string, std::string> commands_of(const std::string& help, const std::string& group) {
  static const std::regex kCommand(R"(  (\S+) +(.*))");
  std::map<std::string, std::string> commands;
  std::istringstream lines(help);
  bool inside = false;
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!line.starts_with(' ')) inside = line == group;
    if (inside && std::regex_match(line, match, kCommand)) commands[match[1]] = match[2];
  }
  return commands;
}

TEST(SiblingsTest, EachCommandIsListedAsItsProgramSays) {
  const std::string help = run_gnomon({"--help"}).output;
  const std::filesystem::path folder = std::filesystem::path(GNOMON_PROGRAM).parent_path();
  for (const std::string name : {"gnomon-admin", "gnomon-lab"}) {
    const EndedProcess own = run(folder / name, {"--help"});
    const auto listed = commands_of(help, "Subcommands of " + name + ":");
    EXPECT_FALSE(listed.empty());
    EXPECT_EQ(listed, commands_of(own.output, "Subcommands:")) << name;
  }
}

TEST(SiblingsTest, AProgramThatIsMissingIsNamed) {
  const test::TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "bin");
  std::filesystem::copy_file(GNOMON_PROGRAM, folder / "bin/gnomon");
  const EndedProcess installed = run(folder / "bin/gnomon", {"formats", "table"});
  EXPECT_EQ(installed.status, 1);
  EXPECT_THAT(installed.errors,
              AllOf(HasSubstr("formats is a command of gnomon-lab"), HasSubstr("No such file"),
                    HasSubstr("Install it beside gnomon")));
  write_file_atomically(folder / "CMakeCache.txt", "");
  const EndedProcess built = run(folder / "bin/gnomon", {"formats", "table"});
  EXPECT_THAT(built.errors,
              HasSubstr("cmake --build " + folder.path().string() + " --target gnomon-lab"));
}

}  // namespace
}  // namespace gnomon::cli
