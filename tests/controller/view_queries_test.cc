// The SQL of lists and views: SQLite would answer each by its indexes, so that what a view costs
// does not grow with what it does not show; and the columns are those of the API's document.
#include "storage/view_queries.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <regex>
#include <set>

#include "storage/ledger.h"
#include "tests/controller/openapi_document.h"
#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

class ViewQueriesTest : public ::testing::Test {
 protected:
  // The lines of EXPLAIN QUERY PLAN.
  std::vector<std::string> plan(const char* sql) {
    std::vector<std::string> lines;
    ledger.read([&](Connection& connection) {
      SQLite::Statement statement(connection.database(), fmt::format("EXPLAIN QUERY PLAN {}", sql));
      while (statement.executeStep()) lines.push_back(statement.getColumn(3).getString());
    });
    return lines;
  }
  std::set<std::string> columns(const char* sql) {
    std::set<std::string> names;
    ledger.read([&](Connection& connection) {
      SQLite::Statement statement(connection.database(), sql);
      for (int i = 0; i < statement.getColumnCount(); ++i) names.insert(statement.getColumnName(i));
    });
    return names;
  }
  test::TemporaryDirectory folder;
  Ledger ledger{{.file = folder / "ledger.sqlite",
                 .queue_max = 16,
                 .readers = 1,
                 .on_commit = {},
                 .on_outcome = {}}};
};

TEST_F(ViewQueriesTest, NoneReadsATableFromEndToEnd) {
  // What a recursive query has made itself is no table.
  const std::regex bad("SCAN (?!picked|CONSTANT ROW)|USE TEMP B-TREE FOR ORDER BY|AUTOMATIC");
  for (const char* sql : views::kAll) {
    for (const std::string& line : plan(sql)) {
      if (sql == views::kRunsNamed && line == "USE TEMP B-TREE FOR ORDER BY") {
        continue;  // of the jobs of one name
      }
      EXPECT_FALSE(std::regex_search(line, bad)) << line << "\n in " << sql;
    }
  }
}

// Rows of a run are found by the run, never by their number alone.
TEST_F(ViewQueriesTest, WhatBelongsToARunIsFoundByTheRun) {
  const std::regex by_run(
      "^SEARCH ((runs|outbox) .*\\((rowid>|name=|state=)|\\w+ USING .*\\((run=|rowid=))");
  for (const char* sql : views::kAll) {
    for (const std::string& line : plan(sql)) {
      if (line.starts_with("SEARCH")) {
        EXPECT_TRUE(std::regex_search(line, by_run)) << line << "\n in " << sql;
      }
    }
  }
}

TEST_F(ViewQueriesTest, AShadowsWindowFindsItsReplaysByItsNumber) {
  EXPECT_THAT(plan(views::kShadow),
              ::testing::Contains(::testing::HasSubstr("replays_by_window (run=? AND window=?)")));
}

TEST_F(ViewQueriesTest, TheTestSeesAScan) {
  EXPECT_THAT(plan("SELECT * FROM windows WHERE gap > 0"),
              ::testing::Contains(::testing::HasSubstr("SCAN")));
}

TEST_F(ViewQueriesTest, ColumnsAreThoseOfTheDocument) {
  const std::vector<std::pair<const char*, const char*>> rows = {
      {"FaultRow", views::kFaults},
      {"AttemptRow", views::kAttempts},
      {"StepRow", views::kSteps},
      {"StepRow", views::kStepsEvery},
      {"CheckpointRow", views::kCheckpoints},
      {"PlanRow", views::kPlans},
      {"WindowRow", views::kWindows},
      {"ReplayRow", views::kReplays},
      {"ShadowRow", views::kShadow},
      {"DecisionRow", views::kDecisions},
      {"DirectiveRow", views::kDirectives},
      {"OverrideRow", views::kOverrides},
      {"NoticeRow", views::kNotices},
      {"DeviceHealthRow", views::kDeviceHealth},
      {"DeviceHealthRow", views::kNewestHealth},
      {"AuditRow", views::kAudit},
      {"NotificationRow", views::kNotifications}};
  for (const auto& [name, sql] : rows) {
    const boost::json::object& schema = test::openapi_schema(name);
    std::set<std::string> documented;
    for (const auto& [column, type] : schema.at("properties").as_object())
      documented.emplace(column);
    EXPECT_EQ(columns(sql), documented) << name;
    EXPECT_EQ(schema.at("required").as_array().size(), documented.size()) << name;
  }
}

TEST_F(ViewQueriesTest, ASummaryHasItsColumnsAndWhatTheCoreKnows) {
  std::set<std::string> shown = columns(views::kRunSummary);
  shown.insert({"phase", "mode", "verdict", "verdict_sentence", "verdict_since",
                "verification_lag_steps", "set_aside"});
  std::set<std::string> documented;
  for (const auto& [column, type] :
       test::openapi_schema("RunSummary").at("properties").as_object()) {
    documented.emplace(column);
  }
  EXPECT_EQ(shown, documented);
}

}  // namespace
}  // namespace gnomon
