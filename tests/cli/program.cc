#include "tests/cli/program.h"

namespace gnomon::cli {

test::EndedProcess run_gnomon(const std::vector<std::string>& arguments,
                              const Variables& variables) {
  std::vector<std::string> command = {GNOMON_PROGRAM};
  command.insert(command.end(), arguments.begin(), arguments.end());
  test::ChildOptions options{.errors_apart = true,
                             .environment = {{"GNOMON_URL", {}},
                                             {"GNOMON_TOKEN", {}},
                                             {"GNOMON_TOKENS", {}},
                                             {"GNOMON_TOKEN_FILE", {}},
                                             {"GNOMON_CA_FILE", {}},
                                             {"GNOMON_CERTIFICATE_FILE", {}},
                                             {"GNOMON_KEY_FILE", {}},
                                             {"USER", "tester"}}};
  for (const auto& [name, value] : variables) options.environment.emplace_back(name, value);
  return test::run_to_end(command, options);
}

}  // namespace gnomon::cli
