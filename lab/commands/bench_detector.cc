// `gnomon bench detector`: the gap detector and its rivals over simulated windows: windows between
// false alarms as they are set up, and delays once each was calibrated to the same false alarms.
#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <memory>

#include "base/stopwatch.h"
#include "base/version.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "controller/decide/gap_study.h"
#include "lab/commands/commands.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

struct DetectorBenchOptions {
  std::vector<std::string> detectors = {"eprocess", "eprocess_any", "cusum", "ewma",
                                        "glr",      "shewhart",     "fixed"};
  std::vector<std::string> noises;  // of the false alarms; empty = all
  std::vector<std::string> delay_noises = {"gaussian", "t4", "contaminated"};
  double windows = 1000;
  int64_t alarms = 400;
  int64_t runs = 2000;
  uint64_t seed = 1;
  int threads = 2;
  bool json = false;
};

decide::GapSettings settings_of(const std::string& detector, double windows) {
  decide::GapSettings settings;
  settings.windows_between_false_alarms = windows;
  settings.kind = detector == "eprocess_any" ? "eprocess" : detector;
  if (detector == "eprocess_any") settings.noise = "any";
  return settings;
}

json::object false_alarms_of(const DetectorBenchOptions& options, const std::string& detector,
                             const std::string& noise) {
  const decide::FalseAlarms found = decide::count_false_alarms(
      settings_of(detector, options.windows), decide::noise_shape(noise),
      static_cast<int64_t>(20 * options.windows), options.alarms,
      static_cast<int64_t>(4 * options.windows * static_cast<double>(options.alarms)),
      options.seed);
  const auto windows = static_cast<double>(found.windows);
  return {{"detector", detector},
          {"noise", noise},
          {"windows_between_false_alarms", found.between},
          {"low_95", found.between_low},
          {"high_95", json_number(found.between_high)},
          {"alarms", found.alarms},
          {"windows", found.windows},
          {"suspicions_per_window", static_cast<double>(found.suspicions) / windows},
          {"ordered_share", static_cast<double>(found.burst_windows) / windows}};
}

json::array delays_of(const DetectorBenchOptions& options, const std::string& detector,
                      const std::string& noise) {
  const decide::NoiseShape& shape = decide::noise_shape(noise);
  const decide::GapSettings settings =
      calibrated(settings_of(detector, options.windows), shape, options.windows, options.seed + 1);
  json::array rows;
  for (const decide::GapFault& fault : decide::gap_faults()) {
    const decide::Delay delay =
        decide::measure_delay(settings, shape, fault, 60, options.runs, options.seed + 2);
    rows.push_back({{"detector", detector},
                    {"noise", noise},
                    {"fault", fault.kind},
                    {"size", fault.size},
                    {"mean", delay.mean},
                    {"p95", delay.p95},
                    {"ordered", delay.ordered},
                    {"missed_share", delay.missed_share}});
  }
  return rows;
}

double nanoseconds_per_window() {
  const decide::GapSettings settings = settings_of("eprocess", 1e9);
  decide::GapNoise noise(decide::noise_shape("gaussian"), 1);
  std::vector<double> drawn(1 << 16);
  for (double& value : drawn) value = noise.next();
  decide::GapState state;
  int64_t alarms = 0;
  Stopwatch watch;
  for (double value : drawn) {
    alarms += observe_gap(state, {.d_percent = 0.05 * value}, settings).alarm;
  }
  const double seconds = watch.read().cpu_seconds;
  return alarms > 0 ? 0 : 1e9 * seconds / static_cast<double>(drawn.size());
}

struct Study {
  json::array false_alarms;
  json::array delays;
};

Study run(const DetectorBenchOptions& options) {
  std::vector<std::string> noises = options.noises;
  if (noises.empty()) {
    for (const decide::NoiseShape& shape : decide::noise_shapes()) noises.emplace_back(shape.name);
  }
  const size_t detectors = options.detectors.size();
  std::vector<json::object> alarms(detectors * noises.size());
  std::vector<json::array> delays(detectors * options.delay_noises.size());
  const auto jobs = static_cast<int64_t>(alarms.size() + delays.size());
#pragma omp parallel for num_threads(options.threads) schedule(dynamic)
  for (int64_t job = 0; job < jobs; ++job) {
    auto i = static_cast<size_t>(job);
    if (i < delays.size()) {
      delays[i] =
          delays_of(options, options.detectors[i % detectors], options.delay_noises[i / detectors]);
    } else {
      i -= delays.size();
      alarms[i] = false_alarms_of(options, options.detectors[i % detectors], noises[i / detectors]);
    }
  }
  Study study;
  for (json::object& row : alarms) study.false_alarms.push_back(std::move(row));
  for (json::array& rows : delays) {
    for (json::value& row : rows) study.delays.push_back(std::move(row));
  }
  return study;
}

// Rows by `row_of`, a column for each detector.
template <class RowOf, class CellOf>
void print_table(const DetectorBenchOptions& options, const json::array& rows, const char* title,
                 RowOf row_of, CellOf cell_of) {
  std::vector<std::string> header = {title};
  for (const std::string& detector : options.detectors) header.push_back(">" + detector);
  Table table(header);
  std::vector<std::string> names;
  for (const json::value& row : rows) {
    const std::string name = row_of(row);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  for (const std::string& name : names) {
    std::vector<std::string> cells = {name};
    for (const std::string& detector : options.detectors) {
      for (const json::value& row : rows) {
        if (row.at("detector").as_string() == detector && row_of(row) == name) {
          cells.push_back(cell_of(row));
        }
      }
    }
    table.add(cells);
  }
  fmt::print("{}\n", table.text());
}

void print_in_words(const DetectorBenchOptions& options, const Study& study) {
  const auto number = [](const json::value& row, const char* key) {
    return row.at(key).to_number<double>();
  };
  fmt::print("Windows between false alarms; {} were wanted\n", options.windows);
  print_table(
      options, study.false_alarms, "noise",
      [](const json::value& row) { return std::string(row.at("noise").as_string()); },
      [&](const json::value& row) {
        return fmt::format("{}{:.0f}", row.at("alarms").as_int64() < options.alarms ? "~" : "",
                           number(row, "windows_between_false_alarms"));
      });
  for (const std::string& noise : options.delay_noises) {
    json::array rows;
    for (const json::value& row : study.delays) {
      if (row.at("noise").as_string() == noise) rows.push_back(row);
    }
    fmt::print(
        "Windows to the alarm (95th percentile; of the mean, ordered by a suspicion) in {} noise, "
        "each at {} windows between false alarms\n",
        noise, options.windows);
    print_table(
        options, rows, "fault",
        [&](const json::value& row) {
          return fmt::format("{} {:g}", row.at("fault").as_string().c_str(), number(row, "size"));
        },
        [&](const json::value& row) {
          return fmt::format("{:.1f} ({:.0f}; {:.1f})", number(row, "mean"), number(row, "p95"),
                             number(row, "ordered"));
        });
  }
}

void bench_detector(const DetectorBenchOptions& options) {
  Study study = run(options);
  if (!options.json) return print_in_words(options, study);
  fmt::print("{}",
             pretty_json(json::object{{"bench", "detector"},
                                      {"windows_between_false_alarms", options.windows},
                                      {"seed", options.seed},
                                      {"runs", options.runs},
                                      {"false_alarms", std::move(study.false_alarms)},
                                      {"delays", std::move(study.delays)},
                                      {"nanoseconds_per_window", nanoseconds_per_window()},
                                      {"build", fmt::format("{} ({}, {}, {})", kVersion, kRevision,
                                                            kBuildType, kCompiler)}}));
}

}  // namespace

void add_bench_detector_command(Command& bench) {
  auto options = std::make_shared<DetectorBenchOptions>();
  Command* detector = bench.add_subcommand(
      "detector",
      "The gap detector and its rivals over simulated windows: false alarms and delays");
  std::vector<std::string> noises;
  for (const decide::NoiseShape& shape : decide::noise_shapes()) noises.emplace_back(shape.name);
  detector
      ->add_option("--detector", options->detectors,
                   "One or more of eprocess, eprocess_any, cusum, ewma, glr, shewhart, fixed")
      ->check(one_of({"eprocess", "eprocess_any", "cusum", "ewma", "glr", "shewhart", "fixed"}))
      ->capture_default_str();
  detector->add_option("--noise", options->noises, "Noise of the false alarms; all by default")
      ->check(one_of(noises));
  detector->add_option("--delay-noise", options->delay_noises, "Noise of the delays")
      ->check(one_of(noises))
      ->capture_default_str();
  detector
      ->add_option("--windows", options->windows, "Windows between false alarms that are wanted")
      ->check(in_range(100.0, 1e6))
      ->capture_default_str();
  detector->add_option("--alarms", options->alarms, "False alarms to count for each number")
      ->check(in_range(10, 1000000))
      ->capture_default_str();
  detector->add_option("--runs", options->runs, "Faulty runs for each delay")
      ->check(in_range(10, 1000000))
      ->capture_default_str();
  detector->add_option("--seed", options->seed, "Seed of the noise")->capture_default_str();
  detector->add_option("--threads", options->threads, "Threads of the simulation")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  detector->add_flag("--json", options->json, "Print JSON");
  detector->footer("Example:\n  gnomon bench detector --windows 1000 --delay-noise gaussian");
  detector->callback([options] { bench_detector(*options); });
}

}  // namespace gnomon::cli
