// Runs the real `gnomon` as an operator would.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/support/child_process.h"

namespace gnomon::cli {

// Names and values, on top of the environment of run_gnomon().
using Variables = std::vector<std::pair<std::string, std::string>>;

// To its end. The environment is the test's, without GNOMON_URL, and with USER=tester.
test::EndedProcess run_gnomon(const std::vector<std::string>& arguments,
                              const Variables& variables = {});

}  // namespace gnomon::cli
