#include "lab/bench/statistics.h"

#include <fmt/format.h>

#include <boost/json.hpp>

#include "base/errors.h"
#include "base/stopwatch.h"
#include "base/version.h"
#include "lab/bench/step.h"
#include "protocol/json.h"
#include "trainer/engine/statistics_collector.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon {
namespace {

namespace json = boost::json;

template <typename Work>
void time_of(Work work, Durations& durations) {
  Stopwatch watch;
  work();
  durations.add(watch.read());
}

struct Measured {
  Durations off, idle, look;
  size_t rows = 0;
  size_t report_bytes = 0;
};

Measured measure(Engine& engine, StatisticsCollector& all, StatisticsCollector& none, int rounds) {
  Measured measured;
  for (int round = 0; round <= rounds; ++round) {
    if (round == 1) measured = {};  // the first was for the pages to come in
    time_of([&] { engine.train_step(); }, measured.off);
    time_of([&] { engine.train_step(&none); }, measured.idle);
    time_of(
        [&] {
          engine.train_step(&all);
          StatisticsReport report;
          report.step = engine.step();
          report.rows = all.rows();
          measured.report_bytes = to_json(report).size();
        },
        measured.look);
  }
  measured.rows = all.rows().size();
  return measured;
}

json::object summary(const Durations& times) {
  return {{"step_seconds", median(times.seconds)}, {"step_cpu_seconds", median(times.cpu_seconds)}};
}

}  // namespace

std::string bench_statistics_json(const BenchStatisticsOptions& options) {
  if (options.rounds < 1) {
    throw ConfigError("bench statistics", 0, "rounds", std::to_string(options.rounds), "1 or more");
  }
  if (options.every < 1) {
    throw ConfigError("bench statistics", 0, "every", std::to_string(options.every), "1 or more");
  }
  const Recipe recipe = recipe_from_name(options.recipe);
  if (recipe == Recipe::kNone) {
    throw ConfigError("bench statistics", 0, "recipe", options.recipe, "a recipe with scales");
  }
  EngineConfig config = bench_step_config(options.size);
  config.threads = options.threads;
  SyntheticData data(options.scratch, config.model.vocabulary,
                     int64_t{8} * config.batch.tokens_per_step());
  config.data = data.directory();
  Engine engine(config);
  engine.set_plan(PrecisionPlan::fp8(recipe));
  engine.initialize();
  engine.prepare();

  StatisticsConfig chosen;
  chosen.what_if = options.what_if;
  chosen.sites_max = static_cast<int>(config.model.sites().size());
  std::unique_ptr<StatisticsCollector> all = engine.statistics(chosen, "bench statistics");
  chosen.tensors = {};
  std::unique_ptr<StatisticsCollector> none = engine.statistics(chosen, "bench statistics");
  const Measured measured = measure(engine, *all, *none, options.rounds);

  const double off = median(measured.off.cpu_seconds);
  const double look_steps = median(measured.look.cpu_seconds) / off - 1;
  const Fingerprint fingerprint = engine.fingerprint();
  json::array what_if;
  for (const std::string& name : options.what_if) what_if.emplace_back(name);
  return json::serialize(json::object{{"bench", "statistics"},
                                      {"size", options.size},
                                      {"recipe", options.recipe},
                                      {"what_if", std::move(what_if)},
                                      {"sites", config.model.sites().size()},
                                      {"rows", measured.rows},
                                      {"report_bytes", measured.report_bytes},
                                      {"off", summary(measured.off)},
                                      {"idle", summary(measured.idle)},
                                      {"look", summary(measured.look)},
                                      {"idle_over_off", median(measured.idle.cpu_seconds) / off},
                                      {"look_steps", look_steps},
                                      {"every", options.every},
                                      {"share", look_steps / static_cast<double>(options.every)},
                                      {"rounds", options.rounds},
                                      {"threads", options.threads},
                                      {"machine", fingerprint.device},
                                      {"build", fingerprint.build},
                                      {"build_type", kBuildType}});
}

}  // namespace gnomon
