// The parts of `gnomon bench controller` that measure size: many runs, long histories, many that
// wait, large ledgers. Each is measured once, with progress on stderr.
#pragma once

#include <boost/json.hpp>
#include <string>

namespace gnomon::cli {

struct ScaleOptions {
  std::string gnomond;
  std::string folder;  // where ledgers are made
  bool quick = false;  // small sizes, which say whether it works and little else
};

// Their numbers by plain keys.
boost::json::object measure_many_runs(const ScaleOptions& options);
boost::json::object measure_waiting(const ScaleOptions& options);
boost::json::object measure_large_restart(const ScaleOptions& options);

// In words, what of these is in `result`.
void print_scale(const boost::json::object& result);

}  // namespace gnomon::cli
