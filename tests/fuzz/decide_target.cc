#include "tests/fuzz/decide_target.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "base/errors.h"
#include "controller/decide/decide.h"
#include "tests/decide/invariants.h"
#include "tests/decide/simulated_run.h"
#include "tests/support/words.h"

namespace gnomon::fuzz {
namespace {

using namespace gnomon::decide;

constexpr int kEventsMax = 3000;
constexpr size_t kStateBytesMax = 400'000;
constexpr size_t kRecentMax = 16;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

void require(bool holds, const std::string& what) {
  if (holds) return;
  fmt::print(stderr, "fuzz: {}\n", what);
  std::abort();
}

// The input as choices; zeros once it is used up.
class Choices {
 public:
  explicit Choices(std::span<const uint8_t> input) : input_(input) {}
  bool left() const { return next_ < input_.size(); }
  uint8_t byte() { return left() ? input_[next_++] : uint8_t{0}; }
  int64_t pick(int64_t low, int64_t high) { return low + byte() % (high - low + 1); }
  bool one_in(int64_t n) { return byte() % n == 0; }
  template <class T, size_t N>
  T of(const T (&values)[N]) {
    return values[byte() % N];
  }
  // Any whole number: near `near`, or one that makes no sense.
  int64_t number(int64_t near) {
    static constexpr int64_t kOdd[] = {0,
                                       -1,
                                       1,
                                       1'000'000'000'000,
                                       int64_t{1} << 53,
                                       std::numeric_limits<int64_t>::max(),
                                       std::numeric_limits<int64_t>::max() - 1,
                                       std::numeric_limits<int64_t>::min()};
    const uint8_t how = byte();
    if (how < 224) return near + static_cast<int64_t>(how % 32) - 8;
    return kOdd[how % std::size(kOdd)];
  }
  double real() {
    static constexpr double kReals[] = {2.0,    2.001,    1.999, 2.01,  2.1, 3,  50,        0,   -1,
                                        1e-300, 1.79e308, 1e6,   -1e-9, 0.5, 10, kInfinity, kNan};
    return of(kReals);
  }
  std::optional<double> maybe_real() {
    if (one_in(8)) return std::nullopt;
    return real();
  }

 private:
  std::span<const uint8_t> input_;
  size_t next_ = 0;
};

Policy policy_of(Choices& choose) {
  Policy p;
  p.mode = choose.of({Mode::kEnforce, Mode::kEnforce, Mode::kObserve, Mode::kAdvise});
  p.window.steps = choose.of({10, 20, 5, 30});
  p.window.every = p.window.steps * choose.pick(0, 3);
  p.verification.budget_percent = choose.of({5.0, 0.1, 50.0});
  p.window.open_max = static_cast<int>(choose.pick(1, 4));
  p.window.long_steps = choose.one_in(3) ? 100 : 0;
  p.detector.kind =
      choose.of({"eprocess", "eprocess", "eprocess", "fixed", "shewhart", "cusum", "ewma", "glr"});
  p.detector.windows_between_false_alarms = choose.of({10'000.0, 100.0, 20.0, 1e9});
  p.detector.tolerance_percent = choose.of({0.1, 0.0, 1.0});
  p.detector.ceiling_percent = choose.of({2.0, 1.5, 1e6});
  p.detector.burn_in_windows = static_cast<int>(choose.pick(0, 8));
  p.detector.noise = choose.of({"symmetric", "any"});
  p.detector.burst = choose.one_in(2);
  p.detector.accept_percent = choose.of({0.25, 0.0, 3.0});
  p.detector.burn_in_steps = choose.of({0, 0, 100});
  p.detector.spike_history = static_cast<int>(choose.pick(32, 128));
  p.instrument.every = static_cast<int>(choose.pick(0, 3));
  p.triage.pairs = static_cast<int>(choose.pick(0, 3));
  p.triage.transients_max = static_cast<int>(choose.pick(0, 2));
  p.attribution.scores = !choose.one_in(4);
  p.attribution.replays_max = static_cast<int>(choose.pick(1, 40));
  p.attribution.parallel = static_cast<int>(choose.pick(1, 4));
  p.attribution.sites_max = static_cast<int>(choose.pick(1, 8));
  static const std::vector<std::string> kRungs[] = {{"pin", "bf16", "hold"},
                                                    {"pin", "recipe", "bf16", "hold"},
                                                    {"bf16"},
                                                    {"pin", "stop"},
                                                    {"hold"}};
  p.ladder.rungs = choose.of(kRungs);
  p.ladder.from = choose.of({"last_verified", "here", "evidence"});
  p.returning.enabled = !choose.one_in(4);
  p.returning.quiet_windows = static_cast<int>(choose.pick(0, 2));
  p.returning.probe_passes = static_cast<int>(choose.pick(1, 2));
  p.limits.actions_max = choose.of({8, 0, 1, 1000});
  p.limits.rollbacks_to_same_step_max = static_cast<int>(choose.pick(0, 3));
  p.verifier.on_loss = choose.of({"continue", "bf16", "hold"});
  p.verifier.loss_windows = static_cast<int>(choose.pick(1, 8));
  p.economics.spare_fraction = choose.of({0.0, 0.1});
  p.directives.timeout_seconds = choose.of({60.0, 1e-3, 1e7});
  return p;
}

// A run that is told whatever the choices say.
class World {
 public:
  explicit World(Choices& choose) : choose_(choose), policy_(policy_of(choose)) {
    require(Policy::parse(policy_.to_toml()).to_toml() == policy_.to_toml(),
            "the policy is not a valid one");
  }

  void run() {
    if (!choose_.one_in(16)) {
      handle(registration());
      handle(AttemptStarted{1, 0, "start", 1, "host"});
      handle(CheckpointCompleted{1, 0, "0", 1});
    }
    while (choose_.left() && handled_ < kEventsMax) act();
    go_through_json();
  }

 private:
  const State& s() const { return state_; }

  void handle(const Event& event) {
    handled_ += 1;
    const std::string before = is_of_unknown_replay(event) ? state_to_json(state_) : "";
    Outcome outcome = decide::decide(std::move(state_), event, policy_, now_);
    invariants_.check(event, outcome, policy_);
    state_ = std::move(outcome.state);
    require(!testing::Test::HasFailure(),
            fmt::format("an invariant does not hold after {} {}", event_type(event),
                        event_to_json(event).substr(0, 2000)));
    if (!before.empty()) {
      require(outcome.effects.empty() && state_to_json(state_) == before,
              "an answer that nobody waits for has changed something");
    }
    if (recent_.size() >= kRecentMax) recent_.erase(recent_.begin());
    recent_.push_back(event);
  }

  // Registered, begun, and an answer to no open question.
  bool is_of_unknown_replay(const Event& event) const {
    const auto* finished = std::get_if<ReplayFinished>(&event);
    const auto* failed = std::get_if<ReplayFailed>(&event);
    if (finished == nullptr && failed == nullptr) return false;
    const int64_t id = finished != nullptr ? finished->replay : failed->replay;
    return std::none_of(s().replays.begin(), s().replays.end(),
                        [&](const PendingReplay& replay) { return replay.id == id; });
  }

  void go_through_json() {
    const std::string text = state_to_json(state_);
    require(text.size() < kStateBytesMax, fmt::format("a state of {} bytes", text.size()));
    state_ = state_from_json(text);
    require(state_to_json(state_) == text, "a state changes when it is written and read");
    for (const Event& event : recent_) {
      const std::string written = event_to_json(event);
      require(event_to_json(event_from_json(event_type(event), written)) == written,
              "an event changes when it is written and read");
    }
  }

  RunRegisteredEvent registration() {
    RunRegisteredEvent event{
        "run", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", site_names(1), 1, 10, 1000};
    event.trainer_replays = choose_.one_in(2);
    event.tokens_per_step = 4096;
    return event;
  }

  int64_t interval() const { return std::clamp<int64_t>(s().run.checkpoint_every, 1, 1000); }

  std::string uri(int64_t step) const { return fmt::format("{}/{}", s().attempt.number, step); }

  // What a trainer in good order reports.
  void train(int64_t steps) {
    for (int64_t i = 0; i < steps; ++i) {
      const int64_t step = s().newest_step + 1;
      const double loss = 2 + 0.001 * static_cast<double>(step % 7);
      handle(StepReported{s().attempt.number, step, s().plan_version, loss, 1, 1});
      if (step % interval() != 0) continue;
      handle(CheckpointCompleted{s().attempt.number, step, uri(step), s().plan_version});
    }
  }

  void obey(const PendingDirective& directive) {
    handle(DirectiveChanged{directive.number, "applied", s().attempt.number, s().newest_step, ""});
    if (directive.kind != "rollback") return;
    handle(AttemptStarted{s().attempt.number + 1, directive.to_step, "rollback",
                          directive.plan_version, choose_.of({"host", "other"})});
  }

  const PendingReplay* pending() {
    if (s().replays.empty()) return nullptr;
    return &s().replays[choose_.byte() % s().replays.size()];
  }

  // What a verifier in good order might answer, good or bad news.
  ReplayFinished answer(const PendingReplay& replay) {
    const WindowState* window = nullptr;
    for (const WindowState& known : s().windows)
      if (known.id == replay.window) window = &known;
    require(window != nullptr, "a replay is waited for in a window that is not open");
    ReplayFinished result;
    result.replay = replay.id;
    result.window = replay.window;
    result.arm = "bf16";
    result.verifier = choose_.of({"v1", "v2", "v3"});
    result.on_trainer = replay.deadline > 0;
    result.fingerprint_equal = !choose_.one_in(4);
    result.seconds = 1;
    const double bump = choose_.of({0.0, 0.0, 48.0, kNan, kInfinity});
    const int64_t steps = std::min<int64_t>(window->steps, 64);
    for (int64_t i = 1; i <= steps; ++i) {
      result.steps.push_back(window->start.step + i);
      result.losses.push_back(2 + (i == steps ? bump : 0));
      result.run_losses.push_back(2);
    }
    result.compared_steps = steps;
    if (choose_.one_in(4)) result.first_mismatch_step = window->start.step + 1;
    if (choose_.one_in(8)) result.first_other_batch_step = result.first_mismatch_step;
    static constexpr double kGaps[] = {0,   0.01, 0.02, 0.05, 0.1,  0.11, 0.2, 0.3,
                                       0.5, 0.9,  1.6,  5,    -0.1, -1,   1e7, kInfinity};
    result.replay_end_loss_bf16 = 2 * (1 + choose_.of(kGaps) / 100);
    result.run_end_loss_bf16 = 2 * (1 + choose_.of(kGaps) / 100);
    result.start_loss_bf16 = 2;
    result.start_loss_plan = 2 * (1 + choose_.of(kGaps) / 100);
    result.end_hash = choose_.of({"a", "a", "b", ""});
    if (replay.role == "scores" && !choose_.one_in(4)) {
      for (const std::string& site : s().run.sites)
        result.scores.push_back({site, choose_.real(), 0.001 * choose_.real(), 25});
    }
    return result;
  }

  // What makes no sense.
  ReplayFinished odd_answer() {
    const PendingReplay* replay = choose_.one_in(4) ? nullptr : pending();
    ReplayFinished result;
    result.replay = replay != nullptr ? replay->id : choose_.number(s().next_replay);
    result.window = choose_.number(s().next_window);
    result.arm = test::any_word(choose_.of({"bf16", "same", "scores", "", "plan"}));
    result.fingerprint_equal = choose_.one_in(2);
    result.compared_steps = choose_.number(10);
    if (choose_.one_in(2)) result.first_mismatch_step = choose_.number(s().newest_step);
    const int64_t steps = choose_.pick(0, 12);
    for (int64_t i = 0; i < steps; ++i) {
      result.steps.push_back(choose_.number(s().newest_step - 10 + i));
      result.losses.push_back(choose_.real());
      if (!choose_.one_in(3)) result.run_losses.push_back(choose_.real());
    }
    result.start_loss_bf16 = choose_.maybe_real();
    result.start_loss_plan = choose_.maybe_real();
    result.run_end_loss_bf16 = choose_.maybe_real();
    result.replay_end_loss_bf16 = choose_.maybe_real();
    result.gap_error = choose_.maybe_real();
    result.seconds = choose_.real();
    if (choose_.one_in(4))
      result.scores.push_back({"no such site", choose_.real(), choose_.real(), choose_.real()});
    return result;
  }

  Event odd_report() {
    switch (choose_.pick(0, 4)) {
      case 0:
        return StepReported{choose_.number(s().attempt.number),
                            choose_.number(s().newest_step),
                            choose_.number(s().plan_version),
                            choose_.real(),
                            choose_.real(),
                            choose_.real()};
      case 1:
        return StepReported{s().attempt.number, s().newest_step + choose_.pick(0, 3),
                            s().plan_version + choose_.pick(0, 2), choose_.real(), choose_.real()};
      case 2: {
        const int64_t step = choose_.number(s().newest_step);
        return CheckpointCompleted{choose_.number(s().attempt.number), step,
                                   choose_.one_in(8) ? "" : uri(step),
                                   choose_.number(s().plan_version)};
      }
      case 3: {
        const int64_t step = s().newest_step / interval() * interval();
        return CheckpointCompleted{s().attempt.number, step, uri(step), s().plan_version};
      }
      default:
        return AttemptStarted{choose_.number(s().attempt.number), choose_.number(s().newest_step),
                              choose_.of({"start", "restart", "rollback"}),
                              choose_.number(s().plan_version), choose_.of({"host", "", "other"})};
    }
  }

  Event odd_registration() {
    RunRegisteredEvent event = registration();
    event.name = choose_.of({"run", "another"});
    event.checkpoint_every = choose_.number(10);
    event.total_steps = choose_.number(1000);
    event.last_directive = choose_.number(s().next_directive);
    event.newest_plan_version = choose_.number(s().next_plan_version);
    event.tokens_per_step = choose_.number(4096);
    return event;
  }

  Event override() {
    OperatorOverride asked;
    asked.kind = test::any_word(choose_.of({"pause", "resume", "stop", "checkpoint_now", "set_plan",
                                            "silence", "mode", "resume", "pray"}));
    asked.owner = choose_.one_in(8) ? "" : "anna";
    asked.reason = "a reason";
    asked.expires_at = choose_.one_in(8) ? choose_.real() : now_ + choose_.of({10.0, 100.0, 1e6});
    asked.mode = test::any_word(choose_.of({"observe", "advise", "enforce", "sleep"}));
    if (asked.kind == "set_plan")
      asked.plan = choose_.of(
          {"[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n", "[[rule]]\nmatch = \"lm_head\"\n", ""});
    return asked;
  }

  void answer_directive() {
    std::vector<PendingDirective> open = s().operator_directives;
    if (s().directive) open.push_back(*s().directive);
    open.insert(open.end(), s().expired_directives.begin(), s().expired_directives.end());
    if (open.empty() || choose_.one_in(8)) {
      return handle(DirectiveChanged{
          choose_.number(s().next_directive),
          test::any_word(choose_.of({"applied", "rejected", "acknowledged"})),
          choose_.number(s().attempt.number), choose_.number(s().newest_step), "odd"});
    }
    const PendingDirective directive = open[choose_.byte() % open.size()];
    if (!choose_.one_in(4)) return obey(directive);
    handle(
        DirectiveChanged{directive.number, "rejected", s().attempt.number, s().newest_step, "no"});
  }

  void jump() {
    now_ += choose_.of({1.0, 61.0, 1e4, -1.0, -1e5, 1e8});
    if (choose_.one_in(2)) handle(Tick{});
  }

  void act() {
    now_ += 1;
    switch (choose_.pick(0, 15)) {
      case 0:
      case 1:
      case 2:
        return train(choose_.pick(1, 64));
      case 3:
      case 4:
      case 5:
      case 6:
        if (const PendingReplay* replay = pending()) handle(answer(*replay));
        return;
      case 7:
        return handle(odd_answer());
      case 8:
        if (const PendingReplay* replay = pending())
          handle(ReplayFailed{replay->id, replay->window, "bf16", "nobody could"});
        return;
      case 9:
      case 10:
        return answer_directive();
      case 11:
        return handle(odd_report());
      case 12:
        return handle(
            Event(recent_.empty() ? Event(Tick{}) : recent_[choose_.byte() % recent_.size()]));
      case 13:
        return jump();
      case 14:
        return handle(override());
      default:
        return seldom();
    }
  }

  void seldom() {
    switch (choose_.pick(0, 4)) {
      case 0:
        return handle(odd_registration());
      case 1:
        return handle(RunEnded{test::any_word(choose_.of({"completed", "stopped", "failed"})),
                               choose_.number(s().newest_step)});
      case 2:
        return handle(ReplayFailed{
            choose_.number(s().next_replay), choose_.number(s().next_window), {}, "odd"});
      case 3:
        return handle(AttemptStarted{s().attempt.number + 1,
                                     std::max<int64_t>(0, s().newest_step - choose_.pick(0, 100)),
                                     "restart", s().plan_version, "host"});
      default:
        return go_through_json();
    }
  }

  Choices& choose_;
  Policy policy_;
  State state_;
  Invariants invariants_;
  double now_ = 1e9;
  int handled_ = 0;
  std::vector<Event> recent_;
};

}  // namespace

void run_decide(std::span<const uint8_t> input) {
  Choices choose(input);
  World(choose).run();
}

}  // namespace gnomon::fuzz
