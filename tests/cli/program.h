// Runs the real `gnomon` as an operator would.
#pragma once

#include <string>
#include <vector>

#include "tests/support/child_process.h"

namespace gnomon::cli {

// To its end. The environment is the test's, without GNOMON_URL, and with USER=tester.
test::EndedProcess run_gnomon(const std::vector<std::string>& arguments);

}  // namespace gnomon::cli
