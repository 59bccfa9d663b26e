#include "tests/robustness/history.h"

#include <SQLiteCpp/Database.h>
#include <SQLiteCpp/Statement.h>
#include <fmt/format.h>

#include <boost/json.hpp>
#include <chrono>
#include <functional>
#include <thread>

#include "storage/ledger_integrity.h"
#include "tests/robustness/follower.h"
#include "tests/robustness/operator.h"
#include "tests/robustness/patient_daemon.h"
#include "tests/robustness/proxy.h"
#include "tests/robustness/trainer.h"
#include "tests/robustness/validate.h"
#include "tests/robustness/verifier.h"

namespace gnomon::robustness {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr double kLeaseSeconds = 0.25;
constexpr auto kHistoryMost = std::chrono::seconds(40);

Fault drawn_fault(Draw& draw, bool isolated) {
  const std::vector<FaultName>& all = fault_names();
  const Fault fault = all[static_cast<size_t>(draw.between(0, std::ssize(all) - 1))].fault;
  if (fault == Fault::kFull && !isolated) return Fault::kDisk;
  return fault == Fault::kLink && !isolated ? Fault::kNetwork : fault;
}

std::vector<RunScenario> drawn_scenarios(uint64_t seed, Fault fault, Draw& draw) {
  std::vector<RunScenario> scenarios;
  const int64_t count = fault == Fault::kLockstep ? 1 : draw.between(2, 4);
  for (int64_t number = 0; number < count; ++number) {
    RunScenario scenario;
    scenario.seed = seed;
    scenario.number = static_cast<int>(number);
    scenario.steps = draw.between(30, fault == Fault::kLockstep ? 60 : 90);
    if (draw.chance(0.5)) scenario.gap_from = draw.between(10, scenario.steps);
    if (draw.chance(0.5)) scenario.blow_up_at = draw.between(1, scenario.steps);
    scenario.restart_chance = draw.chance(0.5) ? 0.1 : 0;
    scenarios.push_back(scenario);
  }
  return scenarios;
}

std::vector<std::unique_ptr<Hook>> drawn_hooks(Record& record, uint64_t seed) {
  std::vector<std::unique_ptr<Hook>> hooks;
  const int count = Draw(seed, 6000).chance(0.5) ? 2 : 1;
  for (int number = 1; number <= count; ++number) {
    hooks.push_back(std::make_unique<Hook>(record, seed, number));
  }
  return hooks;
}

class History {
 public:
  History(uint64_t seed, Fault fault)
      : seed_(seed),
        fault_(fault),
        draw_(seed, 1),
        record_(drawn_scenarios(seed, fault, draw_)),
        scene_(record_, Clock::now() + kHistoryMost),
        hooks_(drawn_hooks(record_, seed)),
        daemon_(scene_, fault, draw_, kLeaseSeconds, hooks_),
        follower_(scene_) {
    scene_.lossy = fault == Fault::kNetwork || fault == Fault::kLink;
    if (fault != Fault::kNetwork) return;
    proxy_ = std::make_unique<Proxy>(record_, seed);
    scene_.proxy_port = proxy_->port();
  }

  ~History();
  History(const History&) = delete;
  History& operator=(const History&) = delete;

  // Under its fault, or calm.
  void play(bool with_faults);
  // When it has been played.
  std::vector<std::string> judge();
  std::vector<std::string> decisions() {
    return decisions_of(daemon_.process().ledger(), record_.runs()[0].id);
  }
  Record& record() { return record_; }
  PatientDaemon& daemon() { return daemon_; }

 private:
  void start_clients();
  void play_in_turns();
  void let_things_happen();
  void something_happens();
  void bring_back();
  void start(bool with_failpoints);
  void end_calmly();
  void wait_for_leases(Endpoint& looks);
  void wait_for_messages(Endpoint& looks);
  void check_backups(std::vector<std::string>& findings) const;

  uint64_t seed_;
  Fault fault_;
  Draw draw_;
  Record record_;
  Scene scene_;
  std::vector<std::unique_ptr<Hook>> hooks_;
  PatientDaemon daemon_;
  Follower follower_;
  std::unique_ptr<Proxy> proxy_;  // fault network
  std::vector<std::thread> clients_;
  std::vector<std::thread> trainers_;
};

// Threads still run here only when the daemon could not be had any more.
History::~History() {
  scene_.given_up = true;
  follower_.leave();
  for (std::vector<std::thread>* threads : {&trainers_, &clients_}) {
    for (std::thread& thread : *threads) {
      if (thread.joinable()) thread.join();
    }
  }
}

void History::start_clients() {
  if (fault_ == Fault::kLockstep) {
    scene_.trainers_running = 1;
    trainers_.emplace_back([this] {
      play_in_turns();
      --scene_.trainers_running;
    });
  } else {
    for (const RunRecord& run : record_.runs()) {
      ++scene_.trainers_running;
      trainers_.emplace_back([this, scenario = run.scenario] {
        Trainer(scene_, scenario).run();
        --scene_.trainers_running;
      });
    }
    for (int number = 1; number <= 2; ++number) {
      clients_.emplace_back(
          [this, number] { Verifier(scene_, seed_, number, Verifier::Manners::kAsItIs).run(); });
    }
    clients_.emplace_back(
        [this] { Operator(scene_, seed_, static_cast<int>(record_.runs().size())).run(); });
  }
  clients_.emplace_back([this] { follower_.run(); });
}

// The verifier answers all that waits before the trainer goes on: then the order of events is a
// function of the seed.
void History::play_in_turns() {
  Trainer trainer(scene_, record_.runs()[0].scenario);
  Verifier verifier(scene_, seed_, 1, Verifier::Manners::kReliable);
  Endpoint looks(scene_, "the looker-on");
  const auto any = [&](const char* state) {
    const auto answer = looks.insist("GET", trainer.run_path() + "/replays", {});
    return answer && answer->response.body.find(state) != std::string::npos;
  };
  while (trainer.turn()) {
    do {
      while (verifier.turn()) {
      }
      // A replay whose lease got lost comes back before its successors are asked for.
      while (verifier.unsure() && any("\"leased\"")) std::this_thread::sleep_for(milliseconds(5));
    } while (any("\"queued\"") || any("\"leased\""));
  }
}

void History::start(bool with_failpoints) {
  daemon_.start(with_failpoints);
  if (proxy_) proxy_->lead_to(daemon_.process().port());
}

void History::bring_back() {
  record_.count("daemon deaths");
  daemon_.kill();
  start(draw_.chance(0.7));
}

void History::something_happens() {
  switch (fault_) {
    case Fault::kStop:
      daemon_.freeze();
      std::this_thread::sleep_for(milliseconds(draw_.between(20, 400)));
      daemon_.wake();
      record_.count("stops");
      return;
    case Fault::kDisk:
    case Fault::kFull:
      daemon_.break_disk();
      std::this_thread::sleep_for(milliseconds(draw_.between(5, 100)));
      daemon_.mend_disk();
      record_.count("times of a bad disk");
      if (draw_.chance(0.3)) bring_back();
      return;
    case Fault::kClock:
      // Any two moments are less than a week apart: what is older goes from the stream (retention).
      daemon_.set_clock_offset(draw_.between(-3, 3) * 86400 / (draw_.chance(0.5) ? 1 : 1000));
      record_.count("clock jumps");
      if (draw_.chance(0.3)) bring_back();
      return;
    case Fault::kTerminate:
      daemon_.terminate();
      start(false);
      return;
    case Fault::kNetwork:
      proxy_->partition(true);
      std::this_thread::sleep_for(milliseconds(draw_.between(5, 400)));
      proxy_->partition(false);
      record_.count("partitions");
      if (draw_.chance(0.3)) bring_back();
      return;
    case Fault::kLink:
      set_loopback(false);
      std::this_thread::sleep_for(milliseconds(draw_.between(5, 400)));
      set_loopback(true);
      record_.count("times without a link");
      if (draw_.chance(0.3)) bring_back();
      return;
    case Fault::kPower:
      if (draw_.chance(0.3)) return bring_back();
      if (draw_.chance(0.2)) {
        daemon_.terminate();
        start(draw_.chance(0.7));
        return;
      }
      [[fallthrough]];
    case Fault::kBackup: {
      Endpoint operator_(scene_, "who makes backups");
      const auto answer = operator_.attempt("POST", "/v1/backups", "{}");
      record_.count("backups asked for");
      if (answer && answer->status == 200) {
        record_.count("backups acknowledged");
        daemon_.note_backup(boost::json::parse(answer->body).at("name").as_string().c_str());
      }
      return;
    }
    default:
      bring_back();
  }
}

void History::let_things_happen() {
  int64_t next = draw_.between(10, 150);
  auto stuck = Clock::now();
  int64_t requests = 0;
  while (scene_.trainers_running > 0) {
    if (!daemon_.running()) {
      bring_back();
    } else if (scene_.requests >= next) {
      something_happens();
      next = scene_.requests + draw_.between(30, 250);
    }
    if (requests != scene_.requests) {
      requests = scene_.requests;
      stuck = Clock::now();
    } else if (Clock::now() > stuck + milliseconds(100)) {
      daemon_.wake();  // from a failpoint that stopped it
    }
    std::this_thread::sleep_for(milliseconds(1));
  }
}

// Nobody speaks for the leases that are held, so they end.
void History::wait_for_leases(Endpoint& looks) {
  const auto held = [&](int64_t run) {
    const auto answer = looks.insist("GET", fmt::format("/v1/runs/run-{}/replays", run), {});
    return answer && answer->response.body.find("\"leased\"") != std::string::npos;
  };
  for (const RunRecord& run : record_.runs()) {
    const int64_t id = record_.of(run.scenario.number, [](RunRecord& known) { return known.id; });
    if (id == 0 || test::eventually([&] { return !held(id); }, std::chrono::seconds(4))) continue;
    record_.violation(fmt::format("{}: a lease of nobody does not end", run.scenario.name()));
  }
}

// Receivers that take everything are soon told everything.
void History::wait_for_messages(Endpoint& looks) {
  std::string waiting;
  const auto none_waits = [&] {
    const auto answer = looks.insist("GET", "/v1/notifications?limit=1", {});
    if (answer) waiting = answer->response.body;
    return waiting == "[]";
  };
  if (!test::eventually(none_waits, std::chrono::seconds(10))) {
    record_.violation("a message waits although its receiver takes everything: " + waiting);
  }
}

// A last start without faults, at which everybody learns what they have missed.
void History::end_calmly() {
  if (proxy_) proxy_->calm_down();
  for (const auto& hook : hooks_) hook->calm_down();
  daemon_.kill();
  start(false);
  Endpoint last(scene_, "the last one");
  const auto ready = last.insist("GET", "/readyz", {});
  if (ready && ready->response.status != 200) {
    record_.violation("the daemon is not ready in the end: " + ready->response.body);
  }
  wait_for_leases(last);
  wait_for_messages(last);
}

void History::play(bool with_faults) {
  start(with_faults);
  start_clients();
  if (with_faults) let_things_happen();
  for (std::thread& trainer : trainers_) trainer.join();
  scene_.over = true;
  daemon_.kill();
  start(false);
  for (size_t i = 0; i + 1 < clients_.size(); ++i) clients_[i].join();
  end_calmly();
  int64_t newest = 0;
  {
    SQLite::Database ledger(daemon_.process().ledger().string(), SQLite::OPEN_READONLY, 5000);
    newest = ledger.execAndGet("SELECT coalesce(max(id), 0) FROM stream").getInt64();
  }
  // One that stays behind is found when its record is checked.
  static_cast<void>(
      test::eventually([&] { return follower_.newest() >= newest; }, std::chrono::seconds(5)));
  follower_.leave();
  clients_.back().join();
  daemon_.terminate();
}

void History::check_backups(std::vector<std::string>& findings) const {
  for (const auto& entry : std::filesystem::directory_iterator(daemon_.folder() / "backups")) {
    if (entry.path().extension() != ".sqlite") continue;  // .partial: not made
    for (const std::string& problem : examine_closed_ledger(entry.path()).problems) {
      findings.push_back(fmt::format("{}: {}", entry.path().filename().string(), problem));
    }
  }
}

std::vector<std::string> History::judge() {
  std::vector<std::string> findings = record_.violations();
  const std::vector<std::string> found = validate(
      daemon_.process().ledger(), record_, {follower_.events(), hooks_, fault_ == Fault::kLink});
  findings.insert(findings.end(), found.begin(), found.end());
  check_backups(findings);
  if (std::string problem = daemon_.backup_problem(); !problem.empty()) findings.push_back(problem);
  return findings;
}

// The decisions of one seed, with and without its fault.
void compare_with_calm(uint64_t seed, History& history, std::vector<std::string>& findings) {
  History calm(seed, Fault::kLockstep);
  calm.play(false);
  const std::vector<std::string> expected = calm.decisions();
  const std::vector<std::string> found = history.decisions();
  for (size_t i = 0; i < std::max(expected.size(), found.size()); ++i) {
    const std::string& a = i < expected.size() ? expected[i] : "nothing";
    const std::string& b = i < found.size() ? found[i] : "nothing";
    if (a == b) continue;
    findings.push_back(fmt::format(
        "decision {} of a history without faults is\n  {}\nand here\n  {}", i + 1, a, b));
    return;
  }
}

}  // namespace

HistoryResult run_history(uint64_t seed, std::optional<Fault> only,
                          const std::filesystem::path& keep, bool isolated) {
  const auto start = Clock::now();
  Draw draw(seed, 0);
  HistoryResult result;
  const Fault drawn = drawn_fault(draw, isolated);
  result.fault = only.value_or(drawn);
  History history(seed, result.fault);
  try {
    history.play(true);
    result.violations = history.judge();
    if (result.fault == Fault::kLockstep) compare_with_calm(seed, history, result.violations);
  } catch (const std::exception& error) {
    result.violations = history.record().violations();
    result.violations.push_back(std::string("the history could not be played: ") + error.what());
  }
  result.counts = history.record().counts();
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (!result.violations.empty() && !keep.empty()) {
    std::filesystem::create_directories(keep);
    std::filesystem::copy(history.daemon().process().folder(), keep / "daemon",
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
  }
  return result;
}

}  // namespace gnomon::robustness
