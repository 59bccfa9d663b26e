#include "tests/cli/program.h"

namespace gnomon::cli {

test::EndedProcess run_gnomon(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {GNOMON_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return test::run_to_end(command, {.errors_apart = true,
                                    .environment = {{"GNOMON_URL", {}},
                                                    {"GNOMON_TOKEN", {}},
                                                    {"GNOMON_TOKEN_FILE", {}},
                                                    {"GNOMON_CA_FILE", {}},
                                                    {"GNOMON_CERTIFICATE_FILE", {}},
                                                    {"GNOMON_KEY_FILE", {}},
                                                    {"USER", "tester"}}});
}

}  // namespace gnomon::cli
