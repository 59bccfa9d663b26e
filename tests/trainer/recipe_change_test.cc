// Another recipe in the middle of a run, by an operator's override through a real gnomond: it takes
// effect at a step boundary, training goes on as a run that was started there would, and the ledger
// says what changed, when, by whom and which steps ran with it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "protocol/json.h"
#include "protocol/precision_plan.h"
#include "tests/trainer/daemon_fixture.h"

namespace gnomon {
namespace {

using test::DaemonFixture;
using test::eventually;
using ::testing::HasSubstr;
namespace json = boost::json;

class RecipeChange : public DaemonFixture {
 protected:
  HttpResponse ask(const std::string& plan) {
    OverrideRequest request;
    request.kind = "set_plan";
    request.plan = plan;
    request.owner = "a tester";
    request.reason = "the study wants it";
    request.expires_seconds = 3600;
    return daemon_.client().request("POST", "/v1/runs/run-1/overrides", to_json(request));
  }
  int64_t newest_step() {
    const HttpResponse response = daemon_.client().request("GET", "/v1/runs/run-1");
    if (response.status != 200) return 0;
    const json::value step = json::parse(response.body).at("step");
    return step.is_null() ? 0 : step.as_int64();
  }
};

TEST_F(RecipeChange, IsRecordedAndEveryStepSaysWhichPlanItRanWith) {
  daemon_.start();
  // "delayed" at the start, so that histories are dropped on the way.
  const auto trainer = start_supervised(
      config(1000000, {}, {{"context = 32\n", "context = 32\nvocabulary = 272\n"}}));
  ASSERT_TRUE(eventually([&] { return newest_step() >= 5; })) << trainer->output();

  const std::string rule = "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = ";
  const std::vector<std::string> recipes = {
      "\"block\"\nallow = 1\n",  // refused, and nothing happens
      "\"block\"\n",
      "\"current\"\n[[rule]]\nmatch = \"*\"\nonly = [\"dgrad\"]\nrecipe = \"rowwise\"\n",
      "\"none\"\nforward_format = \"e8m3\"\ngradient_format = \"e8m3\"\n",
      "\"delayed\"\namax_history = 4\n"};
  int64_t number = 0, before = 0;
  std::vector<int64_t> versions = {0}, starts = {0};
  for (const std::string& recipe : recipes) {
    const HttpResponse response = ask(rule + recipe);
    if (recipe.find("allow") != std::string::npos) {
      EXPECT_EQ(response.status, 400) << response.body;
      EXPECT_THAT(response.body, HasSubstr("allow"));
      continue;
    }
    ASSERT_EQ(response.status / 100, 2) << response.body;
    number = from_json<OverrideAccepted>(response.body).directive;
    ASSERT_TRUE(reaches(number, "applied")) << trainer->output();
    const json::object row = directive(number);
    const int64_t changed = row.at("applied_step").as_int64();
    versions.push_back(row.at("plan_version").as_int64());
    starts.push_back(changed);
    EXPECT_GT(versions.back(), versions[versions.size() - 2]);
    EXPECT_GT(changed, before);
    before = changed;
    ASSERT_TRUE(eventually([&] { return newest_step() >= changed + 3; })) << trainer->output();
  }
  trainer->signal(SIGTERM);
  ASSERT_EQ(trainer->wait(), 0) << trainer->output();

  for (size_t i = 1; i < starts.size(); ++i) {
    const int64_t from = std::max(starts[i - 1] + 1, starts[i] - 2), to = starts[i] + 3;
    const json::array steps = daemon_.rows(fmt::format("steps?from={}&to={}", from, to));
    ASSERT_EQ(std::ssize(steps), to - from + 1);
    for (const json::value& step : steps) {
      const int64_t at = step.at("step").as_int64();
      EXPECT_EQ(step.at("plan_version").as_int64(), versions[at <= starts[i] ? i - 1 : i])
          << "step " << at;
      EXPECT_TRUE(step.at("loss").is_double()) << "step " << at << " is not finite";
    }
  }
  std::string plans;
  for (const json::value& plan : daemon_.rows("plans")) {
    plans += json::serialize(plan);
  }
  EXPECT_THAT(plans, HasSubstr("block"));
  EXPECT_THAT(plans, HasSubstr("only = [\\\"dgrad\\\"]"));
  EXPECT_THAT(plans, HasSubstr("e8m3"));
  const json::array overrides = daemon_.rows("overrides");
  ASSERT_EQ(overrides.size(), 4u);
  EXPECT_EQ(overrides[0].at("owner").as_string(), "a tester");
  EXPECT_EQ(daemon_.rows("decisions").size(), 4u);
}

}  // namespace
}  // namespace gnomon
