// `gnomon bench statistics`: what tensor statistics cost a training step, in CPU time and against
// steps without them, taken in turn in the same run.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace gnomon {

struct BenchStatisticsOptions {
  std::string size = "10m";        // one of bench_step_sizes()
  std::string recipe = "current";  // in use
  std::vector<std::string> what_if = {"block", "mx"};
  int threads = 2;
  int rounds = 5;       // of one step of each kind; medians are reported
  int64_t every = 100;  // steps, for the share
  std::filesystem::path scratch = std::filesystem::temp_directory_path();
};

// Three kinds of steps of one engine in FP8: `off`; `idle`, with a collector that no tensor is
// chosen for, which is more than what a run without statistics or between two looks does; `look`,
// with every tensor of every site, `recipe` and the what-ifs, and the report as JSON, as the
// trainer makes it. Returns one JSON object: off, idle and look with step_seconds and
// step_cpu_seconds (all threads); idle_over_off; look_steps, the CPU time of a look in steps ((look
// − off)/off); share, what that is at one look in `every` steps; rows; report_bytes; machine,
// build. Throws ConfigError, Error.
std::string bench_statistics_json(const BenchStatisticsOptions& options);

}  // namespace gnomon
