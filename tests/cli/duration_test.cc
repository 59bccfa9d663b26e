#include "cli/duration.h"

#include <gmock/gmock.h>

#include "base/errors.h"

namespace gnomon::cli {
namespace {

TEST(DurationTest, AcceptsNumbersWithUnitsAndTheirSums) {
  const std::pair<const char*, double> cases[] = {
      {"90s", 90},    {"15m", 900},        {"2h", 7200},      {"3d", 259200},
      {"1.5h", 5400}, {"1h30m", 5400},     {"1d12h", 129600}, {"0.5s", 0.5},
      {"0h5m", 300},  {"90d", 90 * 86400}, {"1h1m1s", 3661},
  };
  for (const auto& [text, seconds] : cases) {
    EXPECT_DOUBLE_EQ(parse_duration("--for", text), seconds) << text;
  }
}

TEST(DurationTest, RefusesEverythingElseByName) {
  for (const char* text : {"", "2", "h", "2 h", "2hours", "-2h", "+2h", "0s", "nan", "inf", "infh",
                           "1e9d", "91d", "2h ", " 2h", "2h-1h", "1h30", "0x2h", "2H"}) {
    try {
      double seconds = parse_duration("--for", text);
      ADD_FAILURE() << "\"" << text << "\" is taken as " << seconds;
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.key(), "--for");
      EXPECT_THAT(error.what(), ::testing::HasSubstr("90s, 15m, 2h, 3d"));
    }
  }
}

TEST(DurationTest, IsSaidInTheUnitThatFits) {
  const std::pair<double, const char*> cases[] = {
      {90, "90 s"},     {60, "1 min"},   {900, "15 min"}, {7200, "2 h"},  {3600, "1 h"},
      {5400, "90 min"}, {259200, "3 d"}, {86400, "1 d"},  {0.5, "0.5 s"}, {9000, "2.5 h"}};
  for (const auto& [seconds, words] : cases) EXPECT_EQ(duration_in_words(seconds), words);
}

}  // namespace
}  // namespace gnomon::cli
