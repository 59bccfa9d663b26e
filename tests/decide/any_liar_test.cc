// Any liar at any time, with answers in any order: lies, their size and their moment are drawn, and
// answers come up to some windows late, as those of verifiers that work side by side do.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/decide/scenarios.h"

namespace gnomon::decide {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::IsEmpty;
using ::testing::Not;

class Draw {
 public:
  explicit Draw(uint64_t seed) : bits_(seed) {}
  double uniform(double low, double high) {
    return low + (high - low) * static_cast<double>(bits_() >> 11) * 0x1p-53;
  }
  int64_t below(int64_t end) { return static_cast<int64_t>(uniform(0, static_cast<double>(end))); }
  bool one_in(int64_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 bits_;
};

// The first five are about BF16's end loss.
constexpr const char* kKinds[] = {
    "off",          "end off",     "stale",          "no difference",  "constant", "not finite",
    "other tokens", "other bits",  "the run's bits", "steps left out", "offset",   "low probes",
    "odd scores",   "BF16 nudged", "FP8 in triage",  "FP8 spikes"};
constexpr int64_t kOfTriage = 13;  // and those after it

struct Lying {
  int64_t kind = 0;  // of kKinds
  double percent = 0;
  int64_t from_step = 0;
  int64_t every = 1;
  std::string liar;

  std::string words() const {
    return fmt::format("{} by {:.2f}%, by {}, one answer in {} from step {}", kKinds[kind], percent,
                       liar, every, from_step);
  }
};

class AnyLiar {
 public:
  AnyLiar(uint64_t seed, Truth truth, int64_t sources_min, int64_t first_kind = 0,
          int64_t end_kind = std::ssize(kKinds))
      : draw_(seed) {
    lying_.kind = first_kind + draw_.below(end_kind - first_kind);
    // Which tokens it took a trainer cannot say.
    const bool of_tokens = std::string_view(kKinds[lying_.kind]) == "other tokens";
    const int64_t count = std::max<int64_t>(1 + draw_.below(4), sources_min - (of_tokens ? 0 : 1));
    truth.trainer_replays = count + 1 == sources_min || draw_.one_in(3);
    truth.verifiers.clear();
    for (int64_t i = 1; i <= count; ++i) truth.verifiers.push_back(fmt::format("v{}:{}", i, i));
    truth.equal_fingerprints = seed % 3 != 0;
    truth.replays_per_step_percent = 20 + 10 * draw_.below(9);
    const double size = std::exp(draw_.uniform(std::log(0.3), std::log(6.0)));
    lying_.percent = draw_.one_in(2) ? size : -size;
    lying_.from_step = draw_.one_in(3) ? 0 : draw_.below(600);
    lying_.every = draw_.one_in(3) ? 1 + draw_.below(4) : 1;
    lying_.liar = truth.verifiers[static_cast<size_t>(draw_.below(count))];
    late_most_ = draw_.one_in(3) ? 0 : draw_.below(60);
    words_ =
        fmt::format("seed {}: {}; {} verifiers, trainer replays: {}, answers up to {} steps late",
                    seed, lying_.words(), count, truth.trainer_replays, late_most_);
    verifiers_ = truth.verifiers;
    steps_ = truth.total_steps;
    run_ = std::make_unique<SimulatedRun>(std::move(truth), scenario_policy());
  }

  SimulatedRun& play() {
    SimulatedRun& run = *run_;
    run.lie = [this](ReplayFinished& answer) {
      honest_ = answer;
      if (answer.verifier == lying_.liar && run_->step >= lying_.from_step) lie(answer);
    };
    run.filter = [this](const Event& event) { return !hold(event); };
    run.start();
    while (run.step < steps_ && !run.paused) {
      run.advance();
      feed_due();
    }
    late_most_ = 0;
    feed_due();
    run.drain();
    return run;
  }

  const std::string& words() const { return words_; }
  const std::string& liar() const { return lying_.liar; }
  bool found_liar() const { return found_liar_ > 0; }

 private:
  struct Late {
    int64_t at = 0;
    ReplayFinished said, honest;
  };

  void lie(ReplayFinished& answer) {
    const std::optional<double> own = answer.replay_end_loss_bf16;
    const std::string honest = event_to_json(answer);
    if (asked_++ % lying_.every == 0) alter(answer);
    if (answer.purpose == "shadow") last_ = own;
    found_liar_ += event_to_json(answer) != honest ? 1 : 0;
  }

  void alter(ReplayFinished& answer) {
    const bool in_bf16 = answer.arm.starts_with("bf16");
    const bool of_triage = answer.purpose == "triage";
    std::optional<double>& end = answer.replay_end_loss_bf16;
    const double factor = 1 + lying_.percent / 100;
    const auto is = [&](const char* kind) { return std::string_view(kKinds[lying_.kind]) == kind; };
    const std::vector<int64_t>& steps = answer.steps;
    if (is("off") && in_bf16 && end) *end *= factor;
    if (is("end off") && answer.run_end_loss_bf16) *answer.run_end_loss_bf16 *= factor;
    if (is("stale") && answer.purpose == "shadow" && end && last_) end = last_;
    if (is("no difference") && in_bf16 && end && answer.run_end_loss_bf16)
      end = answer.run_end_loss_bf16;
    if (is("constant") && in_bf16 && end) *end = 3.1;
    if (is("not finite") && in_bf16 && end) *end = NAN;
    if (is("other tokens") && !steps.empty()) {
      answer.first_other_batch_step = steps[0];
      answer.other_batches = {{steps[0], "run", "data"}};
      if (answer.arm == "same") answer.first_mismatch_step = steps[0];
    }
    if (is("other bits") && answer.arm == "same" && !steps.empty())
      answer.first_mismatch_step = steps[0], answer.end_hash = "other";
    if (is("the run's bits") && answer.arm == "same") answer.first_mismatch_step.reset();
    if (is("steps left out"))
      answer.steps.clear(), answer.losses.clear(), answer.run_losses.clear();
    if (is("BF16 nudged") && of_triage && in_bf16 && end) *end *= factor;
    if (is("FP8 in triage") && of_triage && !in_bf16 && end) *end *= factor;
    if (is("FP8 spikes") && of_triage && !in_bf16)
      for (double& loss : answer.losses) loss += 3;
    if (is("offset") && answer.start_loss_plan) *answer.start_loss_plan *= factor;
    if (is("low probes") && answer.purpose == "probe" && end) *end *= 1 - std::abs(factor - 1);
    if (is("odd scores"))
      for (SiteScore& score : answer.scores) score.phi = score.site == "lm_head" ? 1 : -score.phi;
  }

  bool hold(const Event& event) {
    const auto* answer = std::get_if<ReplayFinished>(&event);
    if (answer == nullptr || feeding_ || late_most_ == 0) return false;
    late_.push_back({run_->step + draw_.below(late_most_ + 1), *answer, honest_});
    return true;
  }

  // A lease of whoever is in quarantine by now has gone to somebody else.
  void feed_due() {
    feeding_ = true;
    const auto due = std::stable_partition(late_.begin(), late_.end(), [&](const Late& late) {
      return late_most_ > 0 && late.at > run_->step;
    });
    const std::vector<Late> now(due, late_.end());
    late_.erase(due, late_.end());
    for (const Late& late : now) {
      if (!run_->state.trust.quarantined.empty() && quarantined(late.said.verifier)) {
        ReplayFinished other = late.honest;
        for (const std::string& name : verifiers_) {
          if (!quarantined(name) && name != lying_.liar) other.verifier = name;
        }
        if (!quarantined(other.verifier)) run_->feed(other);
      } else {
        run_->feed(late.said);
      }
    }
    feeding_ = false;
  }
  bool quarantined(const std::string& name) const {
    return std::ranges::count(run_->state.trust.quarantined, name) > 0;
  }

  Draw draw_;
  Lying lying_;
  int64_t late_most_ = 0, steps_ = 0;
  std::string words_;
  std::vector<std::string> verifiers_;
  std::unique_ptr<SimulatedRun> run_;
  ReplayFinished honest_;
  std::optional<double> last_;
  std::vector<Late> late_;
  int64_t asked_ = 0, found_liar_ = 0;
  bool feeding_ = false;
};

std::vector<std::string> verdicts(const SimulatedRun& run) {
  std::vector<std::string> names;
  for (const RecordDecision& decision : run.decisions("")) names.push_back(decision.verdict);
  return names;
}

TEST(AnyLiarTest, HarmsNoHealthyRun) {
  int64_t found_liar = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    AnyLiar scene(seed, Truth(), 0);
    const SimulatedRun& run = scene.play();
    SCOPED_TRACE(scene.words());
    EXPECT_THAT(run.directives(""), IsEmpty());
    EXPECT_FALSE(run.paused);
    EXPECT_THAT(verdicts(run), Not(Contains("fp8_numerics")));
    for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, scene.liar());
    found_liar += scene.found_liar();
  }
  EXPECT_GT(found_liar, 150) << "of 300 scenes: some kinds of lies show in no healthy run";
}

// Windows part by what is their own, and now and then one is over the ceiling by chance.
TEST(AnyLiarTest, BlamesNoWideWindowOfHealthyFp8) {
  int64_t alarms = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    AnyLiar scene(seed, wide_windows(4000, 0.05, 0.75, seed), 2, kOfTriage);
    const SimulatedRun& run = scene.play();
    SCOPED_TRACE(scene.words());
    EXPECT_THAT(verdicts(run), Not(Contains("fp8_numerics")));
    EXPECT_THAT(run.directives("set_plan"), IsEmpty());
    EXPECT_THAT(run.directives("rollback"), IsEmpty());
    for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, scene.liar());
    alarms += std::ssize(run.decisions("alarm"));
  }
  EXPECT_GT(alarms, 300);
}

// A spike that rounding decides, which no replay from nudged weights shows.
TEST(AnyLiarTest, BlamesNoSpikeOfChance) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Truth truth;
    truth.chance_spikes = {333, 533, 733};
    AnyLiar scene(seed, truth, 2, kOfTriage);
    const SimulatedRun& run = scene.play();
    SCOPED_TRACE(scene.words());
    EXPECT_THAT(verdicts(run), Not(Contains("fp8_numerics")));
    EXPECT_THAT(verdicts(run), Contains(AnyOf("generic_spike", "unexplained")));
    EXPECT_THAT(run.directives("set_plan"), IsEmpty());
    for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, scene.liar());
  }
}

// A weight flips while one of them lies: what the loss shows of it is undone, and nobody else pays.
TEST(AnyLiarTest, HidesNoFlipFromTwoThatAreHonest) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Truth flip;
    flip.bit_flips = {433};
    AnyLiar scene(seed, flip, 3);
    const SimulatedRun& run = scene.play();
    SCOPED_TRACE(scene.words());
    EXPECT_LT(run.damage, 1) << "of 20%";
    for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, scene.liar());
  }
}

TEST(AnyLiarTest, HidesNoSpikeFromTwoThatAreHonest) {
  for (const double height : {3.0, double(NAN)}) {
    for (uint64_t seed = 1; seed <= 150; ++seed) {
      AnyLiar scene(seed, spike(433, height, kGuilty), 3);
      const SimulatedRun& run = scene.play();
      SCOPED_TRACE(scene.words());
      EXPECT_THAT(verdicts(run), Contains("fp8_numerics"));
      EXPECT_FALSE(run.state.spikes.non_finite);
      for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, scene.liar());
    }
  }
}

// Three sources, and one of them lies.
TEST(AnyLiarTest, HidesNoFaultFromTwoThatAreHonest) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    AnyLiar scene(seed, numerical_fault({kGuilty}, 401, 1001), 3);
    const SimulatedRun& run = scene.play();
    SCOPED_TRACE(scene.words());
    EXPECT_THAT(verdicts(run), Contains("fp8_numerics"));
    EXPECT_NEAR(run.damage, 0, 10) << "of 120%";
    const auto found = run.decisions("attribution");
    ASSERT_FALSE(found.empty());
    EXPECT_THAT(found.back().sites, Contains(kGuilty));
    for (const std::string& name : run.state.trust.quarantined) EXPECT_EQ(name, scene.liar());
  }
}

}  // namespace
}  // namespace gnomon::decide
