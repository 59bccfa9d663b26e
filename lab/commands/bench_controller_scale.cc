#include "lab/commands/bench_controller_scale.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/progress.h"
#include "base/temporary_directory.h"
#include "lab/load/many.h"
#include "lab/load/restart.h"
#include "lab/load/waiters.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

double number(const json::object& result, const char* key) {
  return result.at(key).to_number<double>();
}

}  // namespace

json::object measure_many_runs(const ScaleOptions& options) {
  const bench::ManyLoad load = options.quick
                                   ? bench::ManyLoad{.runs = 50, .verifiers = 200, .steps = 1600}
                                   : bench::ManyLoad{};
  const TemporaryDirectory folder(options.folder);
  Progress progress("many runs", load.runs * load.steps);
  const bench::ManyResult many =
      bench::measure_many(options.gnomond, folder.path(), load,
                          [&](int64_t steps, const char* what) { progress.update(steps, what); });
  progress.finish();
  const auto steps = static_cast<double>(many.steps);
  return {{"many_runs", load.runs},
          {"many_verifiers", load.verifiers},
          {"many_steps", many.steps},
          {"many_windows_verified", many.windows},
          {"many_requests_put_off", many.put_off},
          {"many_steps_per_second", steps / many.seconds},
          {"many_cpu_seconds", many.cpu_seconds},
          {"rss_bytes_1000_runs", many.memory.most},
          {"rss_bytes_1000_runs_at_end", many.memory.now},
          {"rss_bytes_1000_runs_idle", many.idle.now},
          {"metrics_scrape_ms", 1e3 * many.scrapes.quantile(0.5)},
          {"metrics_scrape_worst_ms", 1e3 * many.scrapes.quantile(1)},
          {"metrics_scrape_idle_ms", 1e3 * many.idle_scrapes.quantile(0.5)},
          {"metrics_scrape_bytes", many.scrape_bytes},
          {"ledger_bytes", many.ledger_bytes},
          {"ledger_bytes_per_million_steps", 1e6 * static_cast<double>(many.ledger_bytes) / steps}};
}

json::object measure_waiting(const ScaleOptions& options) {
  const bench::WaitersLoad load =
      options.quick ? bench::WaitersLoad{.streams = 100, .polls = 100, .idle_seconds = 1}
                    : bench::WaitersLoad{};
  const TemporaryDirectory folder(options.folder);
  const bench::WaitersResult waited = bench::measure_waiters(options.gnomond, folder.path(), load);
  return {{"waiters", load.streams + load.polls},
          {"waiter_bytes", waited.bytes_each},
          {"waiters_idle_cpu_share", waited.idle_cpu_share},
          {"event_to_all_streams_p50_ms", 1e3 * waited.event.quantile(0.5)},
          {"event_to_all_streams_ms", 1e3 * waited.event.quantile(1)},
          {"directive_to_one_ms", 1e3 * waited.directive_seconds}};
}

json::object measure_large_restart(const ScaleOptions& options) {
  constexpr double kBytes = 5e9, kQuickBytes = 2e8;
  const double bytes = options.quick ? kQuickBytes : kBytes;
  const TemporaryDirectory folder(options.folder);
  Progress progress("a large ledger", static_cast<int64_t>(bytes / 1e6));
  const bench::RestartTimes times =
      bench::measure_restart(options.gnomond, folder.path(), bytes, progress);
  return {{"restart_ledger_bytes", times.ledger_bytes},
          {"restart_cold_seconds", times.cold_seconds},
          {"restart_warm_seconds", times.warm_seconds}};
}

void print_scale(const json::object& result) {
  constexpr double kMega = 1e6;
  if (result.contains("rss_bytes_1000_runs")) {
    fmt::print(
        "{} runs, {} verifiers, {} steps: {:.0f} MB at most, /metrics in {:.0f} ms (worst {:.0f}), "
        "{:.0f} MB of ledger a million steps\n",
        result.at("many_runs").as_int64(), result.at("many_verifiers").as_int64(),
        result.at("many_steps").as_int64(), number(result, "rss_bytes_1000_runs") / kMega,
        number(result, "metrics_scrape_ms"), number(result, "metrics_scrape_worst_ms"),
        number(result, "ledger_bytes_per_million_steps") / kMega);
  }
  if (result.contains("waiters")) {
    fmt::print(
        "{} clients that wait: {:.1f} kB each, {:.2f}% of a core; an event at the last stream "
        "after "
        "{:.0f} ms, a directive after {:.1f} ms\n",
        result.at("waiters").as_int64(), number(result, "waiter_bytes") / 1e3,
        100 * number(result, "waiters_idle_cpu_share"), number(result, "event_to_all_streams_ms"),
        number(result, "directive_to_one_ms"));
  }
  if (result.contains("restart_ledger_bytes")) {
    fmt::print("ready on a ledger of {:.2f} GB: {:.2f} s, {:.2f} s with it in memory\n",
               number(result, "restart_ledger_bytes") / 1e9, number(result, "restart_cold_seconds"),
               number(result, "restart_warm_seconds"));
  }
}

}  // namespace gnomon::cli
