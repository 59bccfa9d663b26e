// Checkpoints and backups through power cuts. The ledger under its daemon is cut in histories
// (fault power).
#include <SQLiteCpp/Database.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <map>
#include <set>
#include <sstream>

#include "base/files.h"
#include "protocol/json.h"
#include "storage/checkpoint_store.h"
#include "storage/ledger_integrity.h"
#include "tests/robustness/power_cuts.h"
#include "tests/robustness/scenario.h"
#include "tests/storage/checkpoint_fixture.h"
#include "tests/support/daemon_process.h"

namespace gnomon::robustness {
namespace {

namespace fs = std::filesystem;

constexpr int kKept = 3;  // checkpoints

struct Scenes {
  PowerOptions options;
  Draw draw;
  int64_t cuts = 0;
  int64_t failed = 0;
  std::map<std::string, int64_t> counts;

  void found(const std::string& scene, const std::string& what) {
    ++failed;
    fmt::print("FAILED: {} at cut {} of seed {}: {}\n", scene, cuts, options.seed, what);
  }
};

// The acknowledged ones that a trainer may count on: written, and not given up since.
std::vector<int64_t> acknowledged(const std::string& output, int64_t& next) {
  std::set<int64_t> steps;
  std::istringstream lines(output);
  for (std::string word; lines >> word;) {
    int64_t step = 0;
    lines >> step;
    if (word == "written") steps.insert(step);
    if (word == "retained") steps.erase(steps.begin(), steps.lower_bound(step));
  }
  if (!steps.empty()) next = *steps.rbegin();
  return {steps.begin(), steps.end()};
}

// Cuts the power while a trainer writes checkpoints, three lives one after another.
void cut_checkpoints(Scenes& scenes) {
  test::TemporaryDirectory folder;
  const fs::path root = folder / "checkpoints";
  PowerCuts power({root.string()}, folder / "journal", scenes.options.lies);
  int64_t newest = 0;
  for (int life = 0; life < 3; ++life) {
    test::ChildOptions child;
    child.environment = power.begin(scenes.draw.between(1, 160));
    const fs::path output = folder / fmt::format("output-{}", life);
    const int status = test::ChildProcess({scenes.options.self, "--write-checkpoints",
                                           root.string(), "--seed", fmt::format("{}", newest)},
                                          output, child)
                           .wait();
    ++scenes.cuts;
    ++scenes.counts["cuts while checkpoints are written"];
    if (status != -SIGKILL) {
      return scenes.found("checkpoints",
                          fmt::format("the writer ended with {}: {}", status, read_file(output)));
    }
    for (const std::string& what : power.cut(scenes.draw)) scenes.found("the journal", what);
    const std::vector<int64_t> known = acknowledged(read_file(output), newest);
    try {
      const CheckpointStore store(root);
      const auto intact = store.newest_intact();
      for (const int64_t step : known) verify_checkpoint(store.path_of(1, step));
      for (const CheckpointInfo& info : store.list()) verify_checkpoint(info.path);
      if (newest > 0 && (!intact || intact->step < newest)) {
        scenes.found("checkpoints", fmt::format("step {} was acknowledged and is not the newest "
                                                "intact one",
                                                newest));
      }
      scenes.counts["checkpoints that were acknowledged and are whole"] += std::ssize(known);
    } catch (const Error& error) {
      return scenes.found("checkpoints", error.what());
    }
  }
}

constexpr int64_t kStepsOfSource = 200;
constexpr int64_t kStepsBefore = 120;

// A ledger with a run of so many steps; of a daemon that was killed, so that there is a WAL, or
// not.
fs::path make_ledger(const fs::path& file, int64_t steps, bool killed) {
  test::DaemonProcess daemon({}, policy_text(60));
  daemon.start();
  HttpClient client = daemon.client();
  const RunScenario scenario{1, 1, 100};
  client.checked("POST", "/v1/runs", to_json(registration_of(scenario)));
  client.checked("POST", "/v1/runs/run-1/attempts", to_json(AttemptStart{1, 0, "start", 1, 1.0}));
  StepBatch batch;
  for (int64_t step = 1; step <= steps; ++step)
    batch.steps.push_back(step_of(scenario, 1, step, 1));
  client.checked("POST", "/v1/runs/run-1/steps", to_json(batch));
  killed ? daemon.kill() : static_cast<void>(daemon.stop());
  fs::copy(daemon.ledger(), file);
  if (killed) fs::copy(daemon.ledger().string() + "-wal", file.string() + "-wal");
  return file;
}

int64_t steps_in(const fs::path& ledger) {
  SQLite::Database database(ledger.string(), SQLite::OPEN_READONLY);
  return database.execAndGet("SELECT count(*) FROM steps").getInt64();
}

std::string problem_of(const fs::path& ledger) {
  try {
    const LedgerHealth health = examine_ledger(ledger);
    return health.good() ? "" : health.problems.front();
  } catch (const Error& error) {
    return error.what();
  }
}

// `gnomon ledger backup` and `restore`: what is there under the final name is whole, and there when
// the command has said so.
void cut_copies(Scenes& scenes, const fs::path& source, const fs::path& before, bool restore) {
  test::TemporaryDirectory folder;
  const fs::path to = folder / "ledger.sqlite";
  const std::string name = restore ? "restore" : "backup";
  if (restore) {  // in the place of a ledger whose newest pages are in its WAL
    fs::copy(before, to);
    fs::copy(before.string() + "-wal", to.string() + "-wal");
  }
  PowerCuts power({to.string()}, folder / "journal", scenes.options.lies);
  std::vector<std::string> command = {GNOMON, "ledger", name};
  if (restore) {
    command.insert(command.end(), {"--from", source.string(), "--ledger", to.string(), "--force"});
  } else {
    command.insert(command.end(), {"--ledger", source.string(), "--out", to.string()});
  }
  test::ChildOptions child;
  child.environment = power.begin(scenes.draw.between(1, 100));
  const test::EndedProcess ended = test::run_to_end(command, child);
  ++scenes.cuts;
  ++scenes.counts[fmt::format("cuts in or behind gnomon ledger {}", name)];
  if (ended.status != 0 && ended.status != -SIGKILL) {
    return scenes.found(name, fmt::format("it ended with {}: {}", ended.status, ended.output));
  }
  for (const std::string& what : power.cut(scenes.draw)) scenes.found("the journal", what);
  if (!fs::exists(to)) {
    if (restore) scenes.found(name, "neither the old ledger nor the new one is there");
    if (!restore && ended.status == 0) scenes.found(name, "it was told to be made, and is gone");
    return;
  }
  ++scenes.counts[fmt::format("whole after gnomon ledger {}", name)];
  if (const std::string problem = problem_of(to); !problem.empty()) {
    return scenes.found(name, problem);
  }
  const int64_t steps = steps_in(to);
  const bool old = restore && ended.status != 0 && steps == kStepsBefore;
  if (steps != kStepsOfSource && !old) {
    scenes.found(name,
                 fmt::format("{} steps are there after it ended with {}", steps, ended.status));
  }
}

}  // namespace

int write_checkpoints(const std::string& root, uint64_t seed) {
  CheckpointStore store(root);
  const auto print = [](const char* what, int64_t step) {
    write_all(STDOUT_FILENO, fmt::format("{} {}\n", what, step), "standard output");
  };
  for (int64_t step = static_cast<int64_t>(seed) + 10;; step += 10) {
    store.write(1, step, SampleContent(step, 300));
    print("written", step);
    if (step % 40 == 0) {  // once more, as after a rollback
      store.write(1, step, SampleContent(step + 1, 300));
    }
    print("retained", step - 10 * (kKept - 1));
    store.retain(kKept, nullptr);
  }
}

int64_t cut_checkpoints_and_backups(const PowerOptions& options) {
  Scenes scenes{options, Draw(options.seed, 40'000), 0, 0, {}};
  test::TemporaryDirectory folder;
  const fs::path source = make_ledger(folder / "source.sqlite", kStepsOfSource, false);
  const fs::path before = make_ledger(folder / "before.sqlite", kStepsBefore, true);
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  fmt::print("power cuts of seed {}\n", options.seed);
  while (seconds() < options.seconds) {
    cut_checkpoints(scenes);
    cut_copies(scenes, source, before, false);
    cut_copies(scenes, source, before, true);
  }
  fmt::print("{} power cuts in {:.1f} s, {} findings\n", scenes.cuts, seconds(), scenes.failed);
  for (const auto& [what, times] : scenes.counts) fmt::print("  {}: {}\n", what, times);
  return scenes.failed;
}

}  // namespace gnomon::robustness
