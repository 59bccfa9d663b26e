// `gnomon bench detect`: real training runs, healthy and faulty, recorded once as small traces; and
// what those traces say about the decision core.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/json.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "base/errors.h"
#include "base/stopwatch.h"
#include "base/version.h"
#include "cli/json_output.h"
#include "controller/decide/gap_settings.h"
#include "lab/commands/commands.h"
#include "lab/rehearsal/budget_findings.h"
#include "lab/rehearsal/catalogue.h"
#include "lab/rehearsal/findings.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;

struct DetectBenchOptions {
  std::string record;
  std::string traces;
  std::string policy;
  bool json = false;
  std::string data;
  std::string scratch;
  rehearsal::CatalogueOptions catalogue;
  int64_t runs = 0;
  int jobs = 1;
};

struct Recorder {
  explicit Recorder(const DetectBenchOptions& chosen) : options(chosen) {}

  const DetectBenchOptions& options;
  std::vector<rehearsal::CatalogueRun> left;
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  size_t done = 0;
  std::string failure;
  Stopwatch watch;

  void work(int job);
  void record(const rehearsal::CatalogueRun& run, const rehearsal::TracedResult& result);
};

void Recorder::record(const rehearsal::CatalogueRun& run, const rehearsal::TracedResult& result) {
  const std::lock_guard lock(mutex);
  ++done;
  const double seconds = watch.read().seconds;
  const double to_go =
      seconds / static_cast<double>(done) * static_cast<double>(left.size() - done);
  fmt::print(stderr, "{}/{}  {}  {} at {:.4f}  ({:.0f} minutes to go)\n", done, left.size(),
             run.file_name(), result.outcome, result.heldout_bf16, to_go / 60);
}

// Steps of long runs do not fit into a repository, and their findings do not need them.
void forget_steps(rehearsal::Trace& trace) {
  std::erase_if(trace.events, [](const rehearsal::TracedEvent& each) {
    return std::holds_alternative<decide::StepReported>(each.event) ||
           std::holds_alternative<decide::CheckpointCompleted>(each.event);
  });
  for (rehearsal::TracedEvent& each : trace.events) {
    auto* replay = std::get_if<decide::ReplayFinished>(&each.event);
    if (replay == nullptr) continue;
    replay->steps.clear();
    replay->losses.clear();
    replay->run_losses.clear();
  }
}

// A run whose observed twin is recorded and would have ordered nothing more is the same to the bit.
bool is_known(const rehearsal::CatalogueRun& run, const fs::path& traces) {
  rehearsal::CatalogueRun twin = run;
  twin.role = "observed";
  const fs::path observed = traces / twin.file_name();
  if (run.role != "enforced" || !fs::exists(observed)) return false;
  return std::ranges::none_of(rehearsal::Trace::read(observed).decisions, [](const auto& each) {
    return each.decision.kind == "action" && !each.decision.enforced;
  });
}

void Recorder::work(int job) {
  try {
    for (size_t i = next++; i < left.size(); i = next++) {
      if (is_known(left[i], options.record)) continue;
      const fs::path scratch = fs::path(options.scratch) / fmt::format("{}-job{}", getpid(), job);
      fs::remove_all(scratch);
      const rehearsal::Study& study = rehearsal::study_from_name(options.catalogue.study);
      rehearsal::Trace trace =
          rehearsal::rehearse(rehearsal::setup_of(study, left[i], options.data, scratch));
      fs::remove_all(scratch);
      if (!study.every_step_in_a_window) forget_steps(trace);
      trace.write(fs::path(options.record) / left[i].file_name());
      record(left[i], trace.result);
    }
  } catch (const std::exception& error) {
    const std::lock_guard lock(mutex);
    failure = error.what();
    next = left.size();
  }
}

void record(const DetectBenchOptions& options) {
  fs::create_directories(options.record);
  Recorder recorder(options);
  for (const rehearsal::CatalogueRun& run : rehearsal::catalogue(options.catalogue)) {
    if (fs::exists(fs::path(options.record) / run.file_name())) continue;
    if (!is_known(run, options.record)) recorder.left.push_back(run);
  }
  if (options.runs > 0 && recorder.left.size() > static_cast<size_t>(options.runs)) {
    recorder.left.resize(static_cast<size_t>(options.runs));
  }
  std::vector<std::jthread> threads;
  for (int job = 0; job < options.jobs; ++job) {
    threads.emplace_back([&recorder, job] { recorder.work(job); });
  }
  threads.clear();
  if (!recorder.failure.empty()) throw Error(recorder.failure);
}

std::vector<rehearsal::Trace> read_traces(const std::string& directory) {
  std::vector<fs::path> files;
  std::error_code absent;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory, absent)) {
    if (entry.path().string().ends_with(".jsonl")) files.push_back(entry.path());
  }
  if (files.empty()) {
    throw ConfigError("", 0, "--traces", directory, "a directory that --record has filled");
  }
  std::ranges::sort(files);
  std::vector<rehearsal::Trace> traces;
  for (const fs::path& file : files) {
    traces.push_back(rehearsal::Trace::read(file));
  }
  return traces;
}

// "a share: 0.98", objects below their key.
void print_in_words(const boost::json::object& object, const std::string& indent) {
  for (const auto& [key, value] : object) {
    if (key == "runs") continue;
    if (value.is_object()) {
      fmt::print("{}{}\n", indent, std::string_view(key));
      print_in_words(value.as_object(), indent + "  ");
    } else if (value.is_double()) {
      fmt::print("{}{}: {:.4g}\n", indent, std::string_view(key), value.as_double());
    } else {
      fmt::print("{}{}: {}\n", indent, std::string_view(key), boost::json::serialize(value));
    }
  }
}

void bench_detect(const DetectBenchOptions& options) {
  if (options.record.empty() == options.traces.empty()) {
    throw ConfigError("", 0, "--record", options.record,
                      "exactly one of --record and --traces, each a directory");
  }
  if (options.traces.empty()) {
    if (options.data.empty()) {
      throw ConfigError("", 0, "--data", "", "with --record a dataset directory of bytes");
    }
    return record(options);
  }
  const decide::Policy policy =
      options.policy.empty() ? decide::Policy() : decide::Policy::load(options.policy);
  const bool dense = options.catalogue.study == "dense";
  const std::vector<rehearsal::Trace> traces = read_traces(options.traces);
  boost::json::object found = dense ? rehearsal::findings(traces, decide::gap_settings(policy))
                                    : rehearsal::budget_findings(traces, policy);
  found["build"] = fmt::format("{} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler);
  if (options.json) {
    fmt::print("{}", pretty_json(found));
  } else {
    print_in_words(found, "");
  }
}

}  // namespace

void add_bench_detect_command(Command& bench) {
  auto options = std::make_shared<DetectBenchOptions>();
  options->scratch = (fs::temp_directory_path() / "gnomon-bench-detect").string();
  Command* detect = bench.add_subcommand(
      "detect", "Real training runs, healthy and faulty, under the decision core");
  detect->add_option("--record", options->record,
                     "Directory for the traces; one that is there is not recorded again");
  detect->add_option("--traces", options->traces, "Directory of traces to judge");
  detect
      ->add_option("--study", options->catalogue.study,
                   "dense: 1,000 steps, all of them in windows; budget: 20,000 steps under the "
                   "default policy")
      ->check(one_of({"dense", "budget"}))
      ->capture_default_str();
  detect->add_option("--policy", options->policy,
                     "To judge: the detector of this policy instead of the default one");
  detect->add_flag("--json", options->json, "Print JSON");
  detect->add_option("--data", options->data, "To record: dataset of bytes (gnomon data prepare)");
  detect->add_option("--scratch", options->scratch, "Directory for checkpoints")
      ->capture_default_str();
  detect->add_option("--runs", options->runs, "At most so many runs now; 0 = all")
      ->check(in_range(0, 1000000));
  detect->add_option("--jobs", options->jobs, "Runs side by side, each on one thread")
      ->check(in_range(1, 256))
      ->capture_default_str();
  detect->add_option("--seeds", options->catalogue.seeds, "Seeds of each healthy or faulty run")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  detect->add_option("--seed", options->catalogue.first_seed, "The first of them")
      ->capture_default_str();
  detect->add_option("--only", options->catalogue.only, "One fault's kind, or none: healthy runs");
  detect->add_option("--role", options->catalogue.role, "Runs of this role only")
      ->check(one_of({"bf16", "fp8", "observed", "enforced", "half"}));
  detect->footer(
      "Examples:\n  gnomon bench detect --record traces --data data --scratch /dev/shm/rehearsal\n"
      "  gnomon bench detect --traces traces --json");
  detect->callback([options] { bench_detect(*options); });
}

}  // namespace gnomon::cli
