// Runs the real `gnomon` as an operator would.
#pragma once

#include <string>
#include <vector>

namespace gnomon::cli {

struct ProgramResult {
  int status = -1;     // exit status; -1 when it did not exit by itself
  std::string output;  // what it printed to standard output
  std::string errors;  // and to standard error
};

// To its end. Standard input is empty; the environment is the test's, without GNOMON_URL, and with
// USER=tester.
ProgramResult run_gnomon(const std::vector<std::string>& arguments);

}  // namespace gnomon::cli
