#include "controller/decide/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "base/errors.h"

namespace gnomon::decide {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(PolicyTest, AnEmptyFileIsTheDefaultPolicy) {
  const Policy policy = Policy::parse("");
  EXPECT_EQ(policy.mode, Mode::kEnforce);
  EXPECT_EQ(policy.to_toml(), Policy().to_toml());
}

TEST(PolicyTest, DefaultsFollowTheKeysThatTheyDependOn) {
  const Policy often = Policy::parse("[window]\nevery = 10\n");
  EXPECT_EQ(often.window.steps, 10);
  const Policy seldom = Policy::parse("[window]\nevery = 5000\nlong_steps = 700\n");
  EXPECT_EQ(seldom.window.long_every, 700);
  EXPECT_EQ(Policy::parse("[detector]\ntolerance_percent = 3\n").detector.ceiling_percent, 6);
  EXPECT_EQ(Policy::parse("[return]\nquiet_windows = 99\n").returning.quiet_windows_max, 99);
}

// Ledgers hold policies that earlier versions wrote out.
TEST(PolicyTest, KeysOfEarlierVersionsAreReadOver) {
  const Policy old =
      Policy::parse("[window]\nevery = 40\nsteps = 20\ncadence = \"fixed\"\nevery_max = 1000\n");
  EXPECT_EQ(old.window.every, 40);
  EXPECT_EQ(old.to_toml().find("cadence"), std::string::npos);
  EXPECT_THROW(Policy::parse("[window]\ncadences = \"fixed\"\n"), ConfigError);
}

TEST(PolicyTest, KeysAreTheMembersThatTheyName) {
  const Policy policy = Policy::parse(
      "mode = \"advise\"\n[return]\nenabled = false\n[verifier]\non_loss = \"bf16\"\n"
      "requires = [\"pool=a\"]\n[controller]\non_loss = \"pause\"\n");
  EXPECT_EQ(policy.mode, Mode::kAdvise);
  EXPECT_FALSE(policy.returning.enabled);
  EXPECT_EQ(policy.verifier.on_loss, "bf16");
  EXPECT_EQ(policy.verifier.requirements, std::vector<std::string>{"pool=a"});
  EXPECT_EQ(policy.controller.on_loss, "pause");
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
        BadPolicy{"NoBudget", "[verification]\nbudget_percent = 0", 2,
                  "verification.budget_percent", "0", "a number from 0.1 to 100"},
        BadPolicy{"LongForkTooShort", "[window]\nevery = 50\nsteps = 25\nlong_steps = 20", 4,
                  "window.long_steps", "20", "more than steps (25"},
        BadPolicy{"LongForksOverlap", "[window]\nlong_steps = 200\nlong_every = 100", 3,
                  "window.long_every", "100", "at least long_steps"},
        BadPolicy{"ToleranceNan", "[detector]\ntolerance_percent = nan", 2,
                  "detector.tolerance_percent", "nan", ""},
        BadPolicy{"UnknownRung", "[ladder]\nrungs = [\"pin\", \"pray\"]", 2, "ladder.rungs", "pray",
                  "hold"},
        BadPolicy{"NoRungs", "[ladder]\nrungs = []", 2, "ladder.rungs", "", "at least one"},
        BadPolicy{"RungsDown", "[ladder]\nrungs = [\"hold\", \"pin\"]", 2, "ladder.rungs", "hold",
                  "only climbs"},
        BadPolicy{"RungTwice", "[ladder]\nrungs = [\"pin\", \"pin\"]", 2, "ladder.rungs", "pin",
                  "once"},
        BadPolicy{"WaitOverItsMaximum", "[return]\nquiet_windows = 9\nquiet_windows_max = 8", 3,
                  "quiet_windows_max", "8", "at least quiet_windows (9"},
        BadPolicy{"Syntax", "mode = ", 1, "", "", "TOML"}),
    [](const auto& table) { return table.param.name; });

TEST(PolicyTest, AllThatIsWrongIsSaidAtOnce) {
  try {
    Policy::parse(
        "mode = \"enforced\"\ntolerance = 1\n[window]\nsteps = 0\nevry = 3\n"
        "[detector]\nburn_in_steps = \"ten\"\n",
        "p.toml");
    FAIL() << "it was accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.line(), 1);
    const std::string all = error.what();
    EXPECT_THAT(all, AllOf(HasSubstr("p.toml:1: mode = "), HasSubstr("\np.toml:2: tolerance = 1"),
                           HasSubstr("\np.toml:4: window.steps = 0"),
                           HasSubstr("\np.toml:5: window.evry = 3"),
                           HasSubstr("\np.toml:7: detector.burn_in_steps = ")));
    EXPECT_EQ(std::ranges::count(all, '\n'), 4);
  }
}

TEST(PolicyTest, AMissingFileIsASystemError) {
  EXPECT_THROW(Policy::load("/nonexistent/policy.toml"), SystemError);
}

}  // namespace
}  // namespace gnomon::decide
