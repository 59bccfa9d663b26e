// robustness: plays randomised histories against real daemons and judges what they left.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>

#include "base/command_line.h"
#include "tests/robustness/api_fuzz.h"
#include "tests/robustness/history.h"
#include "tests/robustness/isolation.h"
#include "tests/robustness/power_cuts.h"

namespace gnomon::robustness {
namespace {

struct Options {
  int64_t histories = 0;  // 0 = as many as there is time for
  double seconds = 60;
  std::optional<uint64_t> seed;
  std::string only;
  std::string keep = "robustness-failures";
  bool stop_at_failure = false;
  bool isolated = false;
  bool api = false;
  std::string calls;
  bool power = false;
  bool lies = false;
  std::string write_checkpoints;
};

struct Summary {
  int64_t played = 0;
  int64_t failed = 0;
  std::map<std::string, int64_t> counts;
  std::map<std::string, int64_t> faults;
};

std::optional<Fault> fault_of(const std::string& name) {
  for (const FaultName& known : fault_names()) {
    if (known.name == name) return known.fault;
  }
  return std::nullopt;
}

void print_result(const HistoryResult& result, uint64_t seed, const std::filesystem::path& folder) {
  fmt::print("FAILED: history {} ({}):\n", seed, name_of(result.fault));
  for (size_t i = 0; i < result.violations.size() && i < 10; ++i) {
    fmt::print("  {}\n", result.violations[i]);
  }
  fmt::print(
      "  {} findings; its folder is kept as {}\n  repeat: robustness --histories 1 --seed {} "
      "--only {}\n",
      result.violations.size(), folder.string(), seed, name_of(result.fault));
}

void play_one(const Options& options, uint64_t seed, Summary& summary) {
  const std::filesystem::path folder =
      options.keep.empty() ? "" : std::filesystem::path(options.keep) / fmt::format("{}", seed);
  const HistoryResult result = run_history(seed, fault_of(options.only), folder, options.isolated);
  ++summary.played;
  ++summary.faults[std::string(name_of(result.fault))];
  for (const auto& [what, times] : result.counts) summary.counts[what] += times;
  if (!result.violations.empty()) {
    ++summary.failed;
    print_result(result, seed, folder);
  }
  std::fflush(stdout);
}

int play(const Options& options) {
  const uint64_t first = options.seed.value_or(std::random_device()());
  fmt::print("seeds from {}\n", first);
  std::fflush(stdout);
  const auto start = std::chrono::steady_clock::now();
  auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  Summary summary;
  double told = 0;
  const auto enough = [&] {
    if (options.stop_at_failure && summary.failed > 0) return true;
    return options.histories > 0 ? summary.played >= options.histories
                                 : seconds() >= options.seconds;
  };
  while (!enough()) {
    play_one(options, first + static_cast<uint64_t>(summary.played), summary);
    if (seconds() > told + 10) {
      told = seconds();
      fmt::print("{:.0f} s: {} histories, {} failed\n", told, summary.played, summary.failed);
      std::fflush(stdout);
    }
  }
  fmt::print("{} histories in {:.1f} s, {} failed\n", summary.played, seconds(), summary.failed);
  for (const auto& [what, times] : summary.faults) fmt::print("  fault {}: {}\n", what, times);
  for (const auto& [what, times] : summary.counts) fmt::print("  {}: {}\n", what, times);
  return summary.failed == 0 ? 0 : 1;
}

int play_api(const Options& options) {
  ApiFuzzOptions fuzz;
  fuzz.seconds = options.seconds;
  fuzz.sequences = options.histories;
  fuzz.seed = options.seed;
  fuzz.only = options.calls;
  fuzz.keep = options.keep;
  fuzz.stop_at_failure = options.stop_at_failure;
  return fuzz_api(fuzz) == 0 ? 0 : 1;
}

int cut_power(const Options& options, const std::string& self) {
  if (!PowerCuts::possible()) {
    fmt::print("a sanitizer wants to be the first library: no power cuts in this build\n");
    return 0;
  }
  PowerOptions power;
  power.seconds = options.seconds;
  power.seed = options.seed.value_or(std::random_device()());
  power.lies = options.lies;
  power.self = self;
  return cut_checkpoints_and_backups(power) == 0 ? 0 : 1;
}

int run(int argc, char** argv) {
  Options options;
  Command app("Plays randomised histories against real daemons and judges what they left.",
              "robustness");
  app.add_option("--histories", options.histories,
                 "how many, or how many sequences; 0 = as time allows");
  app.add_option("--seconds", options.seconds, "for how long, by default 60");
  app.add_option("--seed", options.seed, "of the first history; each one is the next number");
  std::vector<std::string> names;
  for (const FaultName& name : fault_names()) names.emplace_back(name.name);
  app.add_option("--only", options.only, "this fault in all histories")->check(one_of(names));
  app.add_option("--keep", options.keep, "folder for what is left of histories that failed");
  app.add_flag("--stop-at-failure", options.stop_at_failure, "end with the first one that fails");
  app.add_flag("--api", options.api,
               "play sequences of any calls of the API, legal or not, in place of histories");
  app.add_option("--calls", options.calls, "with --api and --seed: these calls alone (0-12,40)");
  app.add_flag("--power", options.power,
               "cut the power of who writes checkpoints and copies ledgers, in place of histories "
               "(of gnomond: --only power)");
  app.add_flag("--lying-disk", options.lies,
               "a disk that keeps nothing of what was synced: power cuts must be found out");
  app.add_option("--write-checkpoints", options.write_checkpoints, "")->group("");
  if (const auto status = app.parse(argc, argv, 2)) return *status;
  if (!options.write_checkpoints.empty()) {
    return write_checkpoints(options.write_checkpoints, options.seed.value_or(0));
  }
  if (options.lies) ::setenv(kPowerLies, "1", 1);  // for histories with --only power too
  if (options.api) return play_api(options);
  if (options.power)
    return cut_power(options, std::filesystem::read_symlink("/proc/self/exe").string());
  const std::string refused = isolate();
  options.isolated = refused.empty();
  if (!options.isolated) {
    fmt::print("no namespaces of its own are allowed here ({}): without the faults full and link\n",
               refused);
    if (options.only == "full" || options.only == "link") return 1;
  }
  return play(options);
}

}  // namespace
}  // namespace gnomon::robustness

int main(int argc, char** argv) {
  try {
    return gnomon::robustness::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "robustness: %s\n", error.what());
    return 1;
  }
}
