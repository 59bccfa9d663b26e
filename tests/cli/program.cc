#include "tests/cli/program.h"

namespace gnomon::cli {

test::EndedProcess run_gnomon(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {GNOMON_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return test::run_to_end(
      command, {.errors_apart = true, .environment = {{"GNOMON_URL", {}}, {"USER", "tester"}}});
}

}  // namespace gnomon::cli
