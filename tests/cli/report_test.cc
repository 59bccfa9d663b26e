#include "cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <regex>

#include "tests/cli/synthetic_ledger.h"

namespace gnomon::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class ReportTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::path file = directory_.path() / "ledger.sqlite";
    write_caught_fault(file);
    history_ = load_history(LedgerView(file), "");
  }
  boost::json::value data() const {
    return boost::json::parse(report_data_json(history_, summarize(history_)));
  }
  std::string html() const { return report_html(history_, summarize(history_)); }

  TemporaryDirectory directory_;
  RunHistory history_;
};

TEST_F(ReportTest, SaysHowFarAnAbandonedAttemptWasKept) {
  boost::json::value json = data();
  EXPECT_EQ(json.at("attempts").at(0).at("kept_until").as_int64(), 20);
  EXPECT_TRUE(json.at("attempts").at(1).at("kept_until").is_null());
  EXPECT_EQ(json.at("attempts").at(0).at("steps").as_array().size(), 55u);
}

TEST_F(ReportTest, TheTimelineFollowsTheStepsThatWereKept) {
  boost::json::array spans = data().at("spans").as_array();
  ASSERT_EQ(spans.size(), 3u);
  auto span = [&](size_t i, const char* key) { return spans[i].at(key).as_int64(); };
  EXPECT_EQ(span(0, "from"), 1);
  EXPECT_EQ(span(0, "to"), 20);
  EXPECT_EQ(span(1, "from"), 21);
  EXPECT_EQ(span(1, "to"), 70);
  EXPECT_EQ(span(1, "plan_version"), 2);
  EXPECT_EQ(span(2, "to"), 100);
  EXPECT_EQ(span(2, "plan_version"), 3);
}

TEST_F(ReportTest, CountsTheGemmsOfEachSiteInEachPlan) {
  boost::json::value json = data();
  size_t faulty = 0;
  while (json.at("sites").at(faulty).as_string() != kFaultySite) ++faulty;
  EXPECT_EQ(json.at("plans").at("1").at(faulty).as_int64(), 3);
  EXPECT_EQ(json.at("plans").at("2").at(faulty).as_int64(), 0);
  EXPECT_EQ(json.at("plans").at("2").at(0).as_int64(), 3);
}

TEST_F(ReportTest, ALossThatIsNotFiniteIsNullAndSurvivesThinning) {
  StepRow step = history_.steps.back();
  for (int64_t i = 0; i < 3 * kReportPointsMax; ++i) {
    step.step += 1;
    step.loss = i == 7000 ? std::numeric_limits<double>::infinity() : 2.0;
    history_.steps.push_back(step);
  }
  boost::json::array losses = data().at("attempts").at(1).at("loss").as_array();
  EXPECT_LE(losses.size(), static_cast<size_t>(kReportPointsMax));
  EXPECT_EQ(std::count_if(losses.begin(), losses.end(),
                          [](const boost::json::value& loss) { return loss.is_null(); }),
            1);
}

TEST_F(ReportTest, IsOneFileThatLoadsNothing) {
  std::string page = html();
  EXPECT_THAT(page, HasSubstr("Dygraph"));
  EXPECT_FALSE(std::regex_search(page, std::regex("<(script|img|iframe)[^>]*\\ssrc=")));
  EXPECT_FALSE(std::regex_search(page, std::regex("<link[^>]*href=\"(?!data:)")));
  EXPECT_THAT(page, Not(HasSubstr("@import")));
  EXPECT_THAT(page, Not(HasSubstr("sourceMappingURL")));
  for (const char* mark :
       {"/*DATA*/", "/*STYLE*/", "/*ELEMENTS*/", "/*STEP_CHARTS*/", "/*TIMELINE*/", "/*TABLES*/",
        "/*NET_SPEEDUP*/", "/*SCRIPT*/", "@TITLE@"}) {
    EXPECT_THAT(page, Not(HasSubstr(mark)));
  }
}

TEST_F(ReportTest, ASentenceCannotEndTheScriptItStandsIn) {
  history_.decisions[0].sentence = "</script><script>alert(1)</script><!--";
  history_.run.name = "a<b>";
  std::string page = html();
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, HasSubstr("<title>Gnomon report: a&lt;b&gt;/1</title>"));
  EXPECT_EQ(data().at("decisions").at(0).at("sentence").as_string(),
            "</script><script>alert(1)</script><!--");
}

}  // namespace
}  // namespace gnomon::cli
