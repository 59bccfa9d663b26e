// `gnomon statistics` against a real controller: what it chooses, sorts and prints.
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "protocol/json.h"
#include "protocol/json_text.h"
#include "tests/cli/program.h"
#include "tests/controller/registration.h"
#include "tests/support/daemon_process.h"

namespace gnomon::cli {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

StatisticsRow rounding(const std::string& site, double underflow) {
  StatisticsRow row;
  row.site = site;
  row.tensor = "gradient";
  row.gemm = "dgrad";
  row.recipe = "current";
  row.in_use = true;
  row.elements = 4096;
  row.numbers[static_cast<size_t>(StatisticsNumber::kUnderflow)] = underflow;
  row.numbers[static_cast<size_t>(StatisticsNumber::kSqnrDb)] = 30.0;
  return row;
}

class StatisticsCommandTest : public ::testing::Test {
 protected:
  StatisticsCommandTest() {
    daemon_.start();
    RunRegistration registration = small_registration();
    registration.sites = sites_;
    post("/v1/runs", to_json(registration));
    AttemptStart start;
    start.cause = "start";
    start.plan_version = 1;
    post("/v1/runs/run-1/attempts", to_json(start));
  }
  void post(const std::string& target, const std::string& body) {
    daemon_.client().checked("POST", target, body);
  }
  void report(int64_t step, std::vector<StatisticsRow> rows) {
    StatisticsReport made;
    made.step = step;
    made.plan_version = 1;
    made.rows = std::move(rows);
    post("/v1/runs/run-1/statistics", to_json(made));
  }
  EndedProcess statistics(std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), {"statistics", "small", "--url", daemon_.url()});
    return run_gnomon(arguments);
  }

  DaemonProcess daemon_;
  const std::vector<std::string> sites_ = {"model.layers.0.mlp.up_proj",
                                           "model.layers.0.mlp.down_proj", "lm_head"};
};

TEST_F(StatisticsCommandTest, ShowsTheNewestStepWorstFirst) {
  report(100, {rounding(sites_[0], 0.9)});
  report(200, {rounding(sites_[0], 0.125), rounding(sites_[1], 0.5), rounding(sites_[2], 0.25)});
  const EndedProcess result = statistics();
  ASSERT_EQ(result.status, 0) << result.errors;
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("attempt 1, step 200, plan 1"), Not(HasSubstr("step 100"))));
  const size_t first = result.output.find(sites_[1]), second = result.output.find(sites_[2]),
               third = result.output.find(sites_[0]);
  EXPECT_LT(first, second);
  EXPECT_LT(second, third);
  EXPECT_NE(third, std::string::npos);
  const std::string by_site = statistics({"--sort", "site"}).output;
  EXPECT_LT(by_site.find("lm_head"), by_site.find(sites_[1]));
  EXPECT_LT(by_site.find(sites_[1]), by_site.find(sites_[0]));
}

TEST_F(StatisticsCommandTest, ChoosesStepsSitesAndTensors) {
  for (int64_t step : {100, 200, 300}) {
    StatisticsRow weight = rounding(sites_[1], 0.1);
    weight.tensor = "weight";
    report(step, {rounding(sites_[0], 0.1), weight});
  }
  const std::string steps = statistics({"--from", "100", "--to", "200"}).output;
  EXPECT_THAT(steps,
              AllOf(HasSubstr("step 100"), HasSubstr("step 200"), Not(HasSubstr("step 300"))));
  EXPECT_THAT(statistics({"--site", sites_[1]}).output,
              AllOf(HasSubstr(sites_[1]), Not(HasSubstr(sites_[0]))));
  EXPECT_THAT(statistics({"--tensor", "gradient"}).output,
              AllOf(HasSubstr(sites_[0]), Not(HasSubstr(sites_[1]))));
  // A glob whose characters mean something in an address.
  EXPECT_THAT(statistics({"--site", "model.layers.{0,1}.*"}).output, HasSubstr(sites_[0]));
  EXPECT_THAT(statistics({"--site", sites_[1] + "&tensor=weight"}).output,
              Not(HasSubstr(sites_[1])));
}

TEST_F(StatisticsCommandTest, SmallNumbersKeepTheirDigits) {
  report(100, {rounding(sites_[0], 5e-5), rounding(sites_[1], 1.0 / 3e9)});
  const EndedProcess table = statistics();
  EXPECT_THAT(table.output, AllOf(HasSubstr(" 5e-05 "), HasSubstr(" 3.33333e-10 ")));
  const EndedProcess json = statistics({"--json"});
  ASSERT_EQ(json.status, 0) << json.errors;
  const boost::json::value reports = parse_json_exactly(json.output);
  const boost::json::array& rows = reports.as_array().at(0).at("rows").as_array();
  EXPECT_EQ(rows.at(0).at("site").as_string(), sites_[1]);
  EXPECT_EQ(rows.at(0).at("underflow").as_double(), 1.0 / 3e9);
  EXPECT_EQ(rows.at(1).at("underflow").as_double(), 5e-5);
  EXPECT_EQ(rows.size(), 2u);
  EXPECT_THAT(json.output, AllOf(HasSubstr("5e-05"), HasSubstr("3.333333333333333e-10")));
}

TEST_F(StatisticsCommandTest, SaysSoWhereThereIsNothing) {
  const EndedProcess result = statistics();
  EXPECT_EQ(result.status, 0);
  EXPECT_THAT(result.output,
              AllOf(HasSubstr("small has no tensor statistics"), HasSubstr("[statistics]")));
  EXPECT_EQ(boost::json::parse(statistics({"--json"}).output), boost::json::array());
}

TEST_F(StatisticsCommandTest, MistakesAreNamed) {
  struct BadCall {
    std::vector<std::string> arguments;
    std::string said;
  };
  for (const BadCall& mistake : std::vector<BadCall>{
           {{"--site", "model.{a"}, "site = \"model.{a\""},
           {{"--tensor", "amax"}, "--tensor"},
           {{"--sort", "worst"}, "--sort = worst"},
           {{"--from", "soon"}, "--from"},
       }) {
    const EndedProcess result = statistics(mistake.arguments);
    EXPECT_EQ(result.status, 2) << mistake.said << result.output;
    EXPECT_THAT(result.errors, HasSubstr(mistake.said));
    EXPECT_EQ(std::ranges::count(result.errors, '\n'), 1) << result.errors;
  }
  const EndedProcess nobody = run_gnomon({"statistics", "nobody", "--url", daemon_.url()});
  EXPECT_EQ(nobody.status, 2);
  EXPECT_THAT(nobody.errors, HasSubstr("RUN = nobody"));
}

}  // namespace
}  // namespace gnomon::cli
