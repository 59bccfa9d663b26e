// gnomon-verifier: replays windows of supervised runs for the controller.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdio>

#include "base/command_line.h"
#include "base/counted.h"
#include "base/errors.h"
#include "base/host.h"
#include "base/sleeping_threads.h"
#include "base/version.h"
#include "kernels/comm/start_collectives.h"
#include "kernels/devices.h"
#include "protocol/client_arguments.h"
#include "trainer/engine/engine_ranks.h"
#include "trainer/shutdown.h"
#include "verifier/worker.h"

namespace {

using namespace gnomon;

constexpr int kStatusFailed = 1;
constexpr int kStatusConfig = 2;
constexpr int kThreadsMax = 1024;

constexpr const char* kFooter = R"(
Example, two verifiers beside one controller:
  gnomon-verifier --controller http://127.0.0.1:7717 --name verifier-1 &
  gnomon-verifier --controller http://127.0.0.1:7717 --name verifier-2 &

A verifier must reach the run's checkpoints and data under the same paths as the trainer. Start as many as there are
spare devices; one that dies costs the time of its lease and nothing else. SIGTERM, SIGINT and SIGUSR1 finish and answer the
replay at hand, then end with status 0; a second signal ends at once.

A run of several ranks is repeated bit for bit by as many ranks alone (docs/data_parallel.md):
  mpirun -n 2 gnomon-verifier --controller http://127.0.0.1:7717 --name verifier-1

Exit status: 0 ended in order; 1 failed (with --once: no replay was completed); 2 the command line cannot be accepted.)";

struct Arguments {
  WorkerOptions options;
  std::string level = "info";
};

std::string default_name() { return fmt::format("{}:{}", host_name(), ::getpid()); }

// Names end up in leases, log lines and metric labels.
std::string check_name(const std::string& name) {
  constexpr size_t kLengthMax = 200;
  const bool printable =
      std::all_of(name.begin(), name.end(), [](unsigned char c) { return c >= ' ' && c != 0x7f; });
  if (!name.empty() && name.size() <= kLengthMax && printable) return {};
  std::string shown = name.substr(0, kLengthMax);
  std::ranges::replace_if(
      shown, [](unsigned char c) { return c < ' ' || c == 0x7f; }, '?');
  return fmt::format("\"{}\" not accepted; expected 1 to {} printable characters", shown,
                     kLengthMax);
}

void add_labels(const std::vector<std::string>& pairs, Labels& labels) {
  const auto refuse = [](const std::string& pair, const std::string& accepted) {
    refuse_option("--label", fmt::format("\"{}\" not accepted; expected {}", pair, accepted));
  };
  for (const std::string& pair : pairs) {
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) refuse(pair, "KEY=VALUE, like pool=team-a");
    const std::string key = pair.substr(0, equals), value = pair.substr(equals + 1);
    if (const std::string accepted = label_error(key, value); !accepted.empty()) {
      refuse(pair, accepted);
    }
    if (!labels.emplace(key, value).second) refuse(pair, "each key once");
  }
  constexpr size_t kOwn = 1;  // host
  if (labels.size() + (labels.contains("host") ? 0 : kOwn) > kLabelsMax) {
    refuse(pairs.back(), fmt::format("at most {} labels, host among them", kLabelsMax));
  }
}

void define(Command& app, Arguments& arguments) {
  WorkerOptions& options = arguments.options;
  app.set_version_flag(
      fmt::format("gnomon-verifier {} ({}, {}, {})", kVersion, kRevision, kCompiler, kBuildType));
  app.footer(kFooter);
  app.add_option("--controller", options.controller.url,
                 "gnomond's URL, like http://127.0.0.1:7717 or https://gnomon.example:7717")
      ->required()
      ->type_name("URL");
  add_access_options(app, options.controller);
  options.name = default_name();
  app.add_option("--name", options.name, "This verifier's name, unique among all")
      ->check(accepted_by(check_name))
      ->type_name("NAME")
      ->capture_default_str();
  app.add_option("--threads", options.threads,
                 "Threads for a replay; by default as many as the run has, without which a replay "
                 "of the same plan\n"
                 "cannot be compared bit for bit")
      ->check(in_range(1, kThreadsMax))
      ->type_name("T");
  app.add_option_function<std::string>(
         "--device",
         [&options](const std::string& name) { options.device = device_from_name(name, ""); },
         "Where replays run; by default where the run does, without which bits cannot be compared")
      ->check(one_of({"cpu", "cuda"}))
      ->type_name("cpu|cuda");
  app.add_option_function<std::vector<std::string>>(
         "--label",
         [&options](const std::vector<std::string>& pairs) { add_labels(pairs, options.labels); },
         "What a policy's [verifier] requires may ask for, like pool=team-a; may be given again. "
         "backend, device and\n"
         "host are there by themselves")
      ->type_name("KEY=VALUE");
  app.add_option(
         "--root", options.roots,
         "Read checkpoints and data below this folder only; may be given again. Without it, "
         "whatever a trainer names")
      ->check(existing_directory())
      ->type_name("DIR");
  app.add_flag("--once", options.once, "End after one lease");
  app.add_option("--log-level", arguments.level, "How much to log on stderr")
      ->check(one_of({"debug", "info", "warning", "error"}))
      ->capture_default_str();
}

int run(const Arguments& arguments, EngineRanks& ranks) {
  Shutdown shutdown;
  std::function<void()> wake = [] {};
  std::mutex wake_mutex;
  EndingSignals signals([&](int) {
    shutdown.request();
    std::lock_guard lock(wake_mutex);
    wake();
  });
  spdlog::logger log("gnomon-verifier", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  log.set_pattern("%Y-%m-%d %H:%M:%S.%eZ %^%l%$ %v", spdlog::pattern_time_type::utc);
  log.set_level(spdlog::level::from_str(arguments.level));
  try {
    WorkerOptions options = arguments.options;
    options.controller = with_environment(options.controller);
    Worker worker(options, shutdown, log, &ranks);
    {
      std::lock_guard lock(wake_mutex);
      wake = [&worker] { worker.wake(); };
    }
    log.info("{} asks {} for replays", arguments.options.name, arguments.options.controller.url);
    const int64_t completed = worker.run();
    std::lock_guard lock(wake_mutex);
    wake = [] {};
    log.info("{} completed", counted(completed, "replay"));
    return arguments.options.once && completed == 0 && !shutdown.requested() ? kStatusFailed : 0;
  } catch (const ConfigError& error) {
    std::fprintf(stderr, "gnomon-verifier: %s\n", as_option(error, "--controller").what());
    return kStatusConfig;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomon-verifier: %s\n", error.what());
    return kStatusFailed;
  }
}

int start(int argc, char** argv) {
  Command app(
      "Leases replays from gnomond, runs each from its checkpoint on the same batches (in BF16, "
      "under the run's\n"
      "own plan or another one) and sends back losses and weight hashes.",
      "gnomon-verifier");
  Arguments arguments;
  define(app, arguments);
  if (const auto status = app.parse(argc, argv, kStatusConfig)) return *status;
  block_ending_signals();  // those that do not lead leave them blocked: a launcher passes them on
  const std::unique_ptr<Collectives> collectives = start_collectives();
  return lead_or_follow(*collectives, [&](EngineRanks& ranks) { return run(arguments, ranks); });
}

}  // namespace

int main(int argc, char** argv) {
  make_waiting_threads_sleep(argv);
  allow_many_files();
  try {
    return start(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gnomon-verifier: %s\n", error.what());
    return kStatusFailed;
  }
}
