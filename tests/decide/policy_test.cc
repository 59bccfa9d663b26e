#include "controller/decide/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ostream>

#include "base/errors.h"

namespace gnomon::decide {
namespace {

using ::testing::HasSubstr;

TEST(PolicyTest, AnEmptyFileIsTheDefaultPolicy) {
  const Policy policy = Policy::parse("");
  EXPECT_EQ(policy.mode, Mode::kEnforce);
  EXPECT_EQ(policy.to_toml(), Policy().to_toml());
}

TEST(PolicyTest, EveryKeyIsReadAndWrittenBack) {
  const std::string text = R"(mode = "advise"

[window]
every = 100
steps = 40
open_max = 7
cadence = "optimised"
every_max = 2000
long_steps = 200
long_every = 800

[detector]
kind = "cusum"
windows_between_false_alarms = 500.0
tolerance_percent = 0.05
ceiling_percent = 0.7
jump_deviations = 4.5
fixed_percent = 0.3
prior_scale_percent = 0.02
burn_in_windows = 10
noise = "any"
burst = false
accept_percent = 0.2
burn_in_steps = 30
spike_sigma = 6.5
spike_history = 64
spike_ratio = 5.0

[instrument]
every = 7
ratio = 4.0

[triage]
pairs = 2
transients_max = 3
transient_steps = 5000

[attribution]
scores = false
recovered_share = 0.3
replays_max = 11
parallel = 3
sites_max = 4

[ladder]
rungs = ["recipe", "bf16", "stop"]
from = "here"
recipe = "mx"

[return]
enabled = false
quiet_windows = 3
probe_passes = 4
evidence = 20.0
backoff = 1.5
quiet_windows_max = 33

[limits]
actions_max = 5
rollbacks_to_same_step_max = 1

[controller]
on_loss = "pause"
grace_seconds = 12.5

[verifier]
lease_ttl_seconds = 3.0
attempts_max = 9
on_loss = "bf16"
loss_windows = 5
share = 2.5
requires = ["backend=cpu", "pool=team-a*"]

[directives]
timeout_seconds = 90.5

[economics]
speedup = 1.4
spare_fraction = 0.25
switch_steps = 12.0
restart_steps = 50.0
loss_exponent = 0.07
)";
  const Policy policy = Policy::parse(text);
  EXPECT_EQ(policy.to_toml(), text);
  EXPECT_EQ(policy.mode, Mode::kAdvise);
  EXPECT_EQ(policy.window.open_max, 7);
  EXPECT_EQ(policy.detector.spike_history, 64);
  EXPECT_EQ(policy.attribution.parallel, 3);
  EXPECT_EQ(policy.ladder.rungs, (std::vector<std::string>{"recipe", "bf16", "stop"}));
  EXPECT_FALSE(policy.returning.enabled);
  EXPECT_EQ(policy.limits.rollbacks_to_same_step_max, 1);
  EXPECT_EQ(policy.controller.on_loss, "pause");
  EXPECT_EQ(policy.verifier.attempts_max, 9);
  EXPECT_EQ(policy.directives.timeout_seconds, 90.5);
}

struct BadPolicy {
  const char* name;
  const char* text;
  int line;
  const char* key;
  const char* value;
  const char* accepted;
};
void PrintTo(const BadPolicy& table, std::ostream* out) { *out << table.name; }

class BadPolicies : public ::testing::TestWithParam<BadPolicy> {};

TEST_P(BadPolicies, AreRefusedWithFileLineKeyValueAndWhatIsAccepted) {
  const BadPolicy& bad = GetParam();
  try {
    Policy::parse(bad.text, "fallback.toml");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.file(), "fallback.toml");
    EXPECT_EQ(error.line(), bad.line);
    EXPECT_THAT(error.key(), HasSubstr(bad.key));
    EXPECT_THAT(error.value(), HasSubstr(bad.value));
    EXPECT_THAT(error.accepted(), HasSubstr(bad.accepted));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadPolicies,
    ::testing::Values(
        BadPolicy{"Mode", "mode = \"watch\"", 1, "mode", "watch", "observe"},
        BadPolicy{"UnknownKey", "\n[window]\nevry = 3", 3, "evry", "3", "every"},
        BadPolicy{"UnknownSection", "[windows]\nevery = 3", 1, "windows", "", "window"},
        BadPolicy{"WrongType", "[window]\nevery = \"often\"", 2, "window.every", "often", "1"},
        BadPolicy{"OutOfRange", "[window]\nopen_max = 0", 2, "window.open_max", "0", "1"},
        BadPolicy{"WindowsOverlap", "[window]\nevery = 20\nsteps = 30", 3, "window.steps", "30",
                  "at most every (20"},
        BadPolicy{"CeilingUnderTolerance",
                  "[detector]\ntolerance_percent = 0.3\nceiling_percent = 0.2", 3,
                  "detector.ceiling_percent", "0.2", "above the tolerance (0.3"},
        BadPolicy{"RecipeWithoutFormats", "[ladder]\nrecipe = \"none\"", 2, "ladder.recipe", "none",
                  "current"},
        BadPolicy{"LossExponent", "[economics]\nloss_exponent = 0.004", 2,
                  "economics.loss_exponent", "0.004", "0.005"},
        BadPolicy{"Detector", "[detector]\nkind = \"hunch\"", 2, "detector.kind", "hunch",
                  "eprocess"},
        BadPolicy{"TooManyFalseAlarms", "[detector]\nwindows_between_false_alarms = 3", 2,
                  "windows_between_false_alarms", "3", "20"},
        BadPolicy{"EveryMaxTooSmall", "[window]\nevery = 100\nevery_max = 50", 3,
                  "window.every_max", "50", "at least every (100"},
        BadPolicy{"LongForkTooShort", "[window]\nevery = 50\nsteps = 25\nlong_steps = 20", 4,
                  "window.long_steps", "20", "more than steps (25"},
        BadPolicy{"LongForksOverlap", "[window]\nlong_steps = 200\nlong_every = 100", 3,
                  "window.long_every", "100", "at least long_steps"},
        BadPolicy{"Pairs", "[triage]\npairs = 9", 2, "triage.pairs", "9", "8"},
        BadPolicy{"Recipe", "[ladder]\nrecipe = \"cake\"", 2, "ladder.recipe", "cake", "block"},
        BadPolicy{"VerifierLoss", "[verifier]\non_loss = \"pray\"", 2, "verifier.on_loss", "pray",
                  "hold"},
        BadPolicy{"Speedup", "[economics]\nspeedup = 0", 2, "economics.speedup", "0", "0.1"},
        BadPolicy{"ToleranceNan", "[detector]\ntolerance_percent = nan", 2,
                  "detector.tolerance_percent", "nan", ""},
        BadPolicy{"HistoryTooShort", "[detector]\nspike_history = 8", 2, "detector.spike_history",
                  "8", "32"},
        BadPolicy{"ShareOne", "[attribution]\nrecovered_share = 1.0", 2, "recovered_share", "1",
                  "0.99"},
        BadPolicy{"UnknownRung", "[ladder]\nrungs = [\"pin\", \"pray\"]", 2, "ladder.rungs", "pray",
                  "hold"},
        BadPolicy{"NoRungs", "[ladder]\nrungs = []", 2, "ladder.rungs", "", "at least one"},
        BadPolicy{"RungsDown", "[ladder]\nrungs = [\"hold\", \"pin\"]", 2, "ladder.rungs", "hold",
                  "only climbs"},
        BadPolicy{"RungTwice", "[ladder]\nrungs = [\"pin\", \"pin\"]", 2, "ladder.rungs", "pin",
                  "once"},
        BadPolicy{"RungsNotAnArray", "[ladder]\nrungs = \"pin\"", 2, "ladder.rungs", "pin",
                  "array"},
        BadPolicy{"From", "[ladder]\nfrom = \"there\"", 2, "ladder.from", "there", "last_verified"},
        BadPolicy{"Backoff", "[return]\nbackoff = 0.5", 2, "return.backoff", "0.5", "1"},
        BadPolicy{"WaitOverItsMaximum", "[return]\nquiet_windows = 9\nquiet_windows_max = 8", 3,
                  "quiet_windows_max", "8", "at least quiet_windows (9"},
        BadPolicy{"NegativeActions", "[limits]\nactions_max = -1", 2, "limits.actions_max", "-1",
                  "0"},
        BadPolicy{"OnLoss", "[controller]\non_loss = \"cry\"", 2, "controller.on_loss", "cry",
                  "continue"},
        BadPolicy{"Ttl", "[verifier]\nlease_ttl_seconds = 0", 2, "lease_ttl_seconds", "0", "0.1"},
        BadPolicy{"Timeout", "[directives]\ntimeout_seconds = 0", 2, "directives.timeout_seconds",
                  "0", "0.001"},
        BadPolicy{"Syntax", "mode = ", 1, "", "", "TOML"}),
    [](const auto& table) { return table.param.name; });

TEST(PolicyTest, AMissingFileIsASystemError) {
  EXPECT_THROW(Policy::load("/nonexistent/policy.toml"), SystemError);
}

}  // namespace
}  // namespace gnomon::decide
