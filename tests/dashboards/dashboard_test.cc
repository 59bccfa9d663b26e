// The dashboard-linter's rules and our own, on the JSON as it is provisioned.
#include "tests/dashboards/dashboard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <set>
#include <sstream>

#include "base/files.h"

namespace gnomon::dashboards {
namespace {

using ::testing::HasSubstr;

const std::string kSource = GNOMON_SOURCE;

class RunDashboard : public ::testing::Test {
 protected:
  const boost::json::array& panels() const { return dashboard_.at("panels").as_array(); }
  const boost::json::object* variable(const std::string& name) const {
    for (const boost::json::value& value : dashboard_.at("templating").at("list").as_array()) {
      if (value.at("name").as_string() == name) return &value.as_object();
    }
    return nullptr;
  }
  boost::json::object dashboard_ =
      load_dashboard(kSource + "/dashboards/grafana/dashboards/run.json");
};

TEST_F(RunDashboard, HasAStableUidAndCannotBeEditedInPlace) {
  EXPECT_EQ(dashboard_.at("uid").as_string(), "gnomon-run");
  EXPECT_FALSE(dashboard_.at("editable").as_bool());
}

TEST_F(RunDashboard, HasTheVariablesOfTheTemplateRules) {
  const boost::json::object* source = variable("datasource");
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(source->at("type").as_string(), "datasource");
  EXPECT_EQ(source->at("query").as_string(), "prometheus");
  EXPECT_EQ(source->at("label").as_string(), "Data source");
  for (const char* name : {"job", "instance"}) {
    const boost::json::object* wanted = variable(name);
    ASSERT_NE(wanted, nullptr) << name;
    EXPECT_TRUE(wanted->at("multi").as_bool()) << name;
    EXPECT_EQ(wanted->at("allValue").as_string(), ".+") << name;
  }
  ASSERT_NE(variable("run"), nullptr);
}

TEST_F(RunDashboard, QueriedVariablesReloadWithTheTimeRangeAndAskTheChosenSource) {
  static const std::regex kLabelValues(R"(label_values\(gnomon_[a-z_]+(\{[^{}]*\})?, [a-z]+\))");
  for (const boost::json::value& value : dashboard_.at("templating").at("list").as_array()) {
    if (value.at("type").as_string() != "query") continue;
    EXPECT_EQ(value.at("refresh").as_int64(), 2) << value.at("name");
    EXPECT_EQ(value.at("datasource").at("uid").as_string(), "${datasource}") << value.at("name");
    std::string query(value.at("query").at("query").as_string());
    EXPECT_TRUE(std::regex_match(query, kLabelValues)) << query;
  }
}

TEST_F(RunDashboard, EveryPanelHasSourceTitleDescriptionUnitAndQueries) {
  ASSERT_GE(panels().size(), 12u);
  std::set<int64_t> ids;
  for (const boost::json::value& panel : panels()) {
    std::string title(panel.at("title").as_string());
    EXPECT_FALSE(title.empty());
    EXPECT_TRUE(ids.insert(panel.at("id").as_int64()).second) << title;
    EXPECT_EQ(panel.at("datasource").at("uid").as_string(), "${datasource}") << title;
    EXPECT_GE(panel.at("description").as_string().size(), 20u) << title;
    EXPECT_FALSE(panel.at("fieldConfig").at("defaults").at("unit").as_string().empty()) << title;
    EXPECT_FALSE(panel.at("targets").as_array().empty()) << title;
  }
}

// Over a range, a verdict of half an hour ago would stand beside today's.
TEST_F(RunDashboard, PanelsOfOneNumberAskForThisMoment) {
  int asked = 0;
  for (const boost::json::value& panel : panels()) {
    for (const boost::json::value& target : panel.at("targets").as_array()) {
      const bool number = panel.at("type") == "stat";
      EXPECT_EQ(target.at("range").as_bool(), !number) << panel.at("title");
      asked += number && target.at("instant").as_bool();
    }
  }
  EXPECT_GE(asked, 7);
}

TEST_F(RunDashboard, PanelsDoNotOverlapAndFitTheGrid) {
  std::set<std::pair<int64_t, int64_t>> taken;
  for (const boost::json::value& panel : panels()) {
    auto at = [&](const char* key) { return panel.at("gridPos").at(key).as_int64(); };
    EXPECT_LE(at("x") + at("w"), 24) << panel.at("title");
    for (int64_t x = at("x"); x < at("x") + at("w"); ++x) {
      for (int64_t y = at("y"); y < at("y") + at("h"); ++y) {
        EXPECT_TRUE(taken.insert({x, y}).second) << panel.at("title");
      }
    }
  }
}

TEST_F(RunDashboard, EverySelectorNamesJobAndInstance) {
  static const std::regex kSelector(R"(gnomon_[a-z0-9_]+(\{[^}]*\})?)");
  for (const Target& target : targets(dashboard_)) {
    for (std::sregex_iterator match(target.expr.begin(), target.expr.end(), kSelector), end;
         match != end; ++match) {
      EXPECT_THAT(match->str(), HasSubstr("job=~\"$job\"")) << target.panel;
      EXPECT_THAT(match->str(), HasSubstr("instance=~\"$instance\"")) << target.panel;
    }
  }
}

TEST_F(RunDashboard, CountersAreRatedOverTheRateInterval) {
  static const std::regex kCounter(
      R"((\w+)\(gnomon_[a-z0-9_]+_(total|bucket)\{[^}]*\}(\[[^\]]*\])?)");
  static const std::regex kAnyCounter(R"(gnomon_[a-z0-9_]+_(total|bucket)\b)");
  auto count = [](const std::string& text, const std::regex& pattern) {
    return std::distance(std::sregex_iterator(text.begin(), text.end(), pattern),
                         std::sregex_iterator());
  };
  int counters = 0;
  for (const Target& target : targets(dashboard_)) {
    EXPECT_EQ(count(target.expr, kCounter), count(target.expr, kAnyCounter)) << target.expr;
    for (std::sregex_iterator match(target.expr.begin(), target.expr.end(), kCounter), end;
         match != end; ++match) {
      ++counters;
      EXPECT_TRUE((*match)[1] == "rate" || (*match)[1] == "increase") << target.expr;
      EXPECT_EQ((*match)[3], "[$__rate_interval]") << target.expr;
    }
  }
  EXPECT_GT(counters, 4);
}

TEST_F(RunDashboard, ShowsDecisionsAsAnnotations) {
  bool found = false;
  for (const Target& target : targets(dashboard_)) {
    found |= target.panel == "annotation Decisions" &&
             target.expr.find("increase(gnomon_run_decisions_total") != std::string::npos;
  }
  EXPECT_TRUE(found);
}

// The names that docs/metrics.md promises, with the series of its histograms.
std::set<std::string> documented_metrics() {
  std::set<std::string> names;
  std::istringstream lines(read_file(kSource + "/docs/metrics.md"));
  static const std::regex kRow(R"(^\| `(gnomon_[a-z0-9_]+)` \| (\w+) \|.*)");
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (!std::regex_match(line, match, kRow)) continue;
    names.insert(match[1]);
    if (match[2] == "histogram") {
      for (const char* suffix : {"_bucket", "_sum", "_count"})
        names.insert(match[1].str() + suffix);
    }
  }
  return names;
}

TEST_F(RunDashboard, AsksOnlyForDocumentedMetrics) {
  std::set<std::string> known = documented_metrics();
  ASSERT_GT(known.size(), 30u);
  for (const Target& target : targets(dashboard_)) {
    for (const std::string& metric : metrics_in(target.expr)) {
      EXPECT_TRUE(known.contains(metric)) << target.panel << " asks for " << metric;
    }
  }
}

TEST(Alerts, AskOnlyForDocumentedMetricsAndHaveARunbookEntry) {
  std::set<std::string> known = documented_metrics();
  std::string rules = read_file(kSource + "/dashboards/prometheus/alerts.yml");
  std::string runbook = read_file(kSource + "/docs/runbook.md");
  static const std::regex kAlert(R"(alert: (Gnomon[A-Za-z]+))");
  static const std::regex kExpr(R"(expr: (\|\n(?:          .*\n)+|.*\n))");
  int alerts = 0;
  for (std::sregex_iterator match(rules.begin(), rules.end(), kAlert), end; match != end; ++match) {
    ++alerts;
    EXPECT_THAT(runbook, HasSubstr("\n## " + (*match)[1].str() + "\n"));
  }
  for (std::sregex_iterator match(rules.begin(), rules.end(), kExpr), end; match != end; ++match) {
    for (const std::string& metric : metrics_in(match->str())) {
      EXPECT_TRUE(known.contains(metric)) << metric;
    }
  }
  auto count = [&](const std::string& key) {
    int found = 0;
    for (size_t at = rules.find(key); at != std::string::npos; at = rules.find(key, at + 1))
      ++found;
    return found;
  };
  EXPECT_GT(alerts, 0);
  for (const char* key : {"- alert:", "severity:", "summary:", "description:", "runbook_url:"}) {
    EXPECT_EQ(count(key), alerts) << key;
  }
}

TEST(Provisioning, IsReadOnlyAndOfVersionOne) {
  std::string provider =
      read_file(kSource + "/dashboards/grafana/provisioning/dashboards/gnomon.yaml");
  EXPECT_THAT(provider, HasSubstr("apiVersion: 1\n"));
  EXPECT_THAT(provider, HasSubstr("allowUiUpdates: false\n"));
  EXPECT_THAT(provider, HasSubstr("foldersFromFilesStructure: true\n"));
  std::string source =
      read_file(kSource + "/dashboards/grafana/provisioning/datasources/prometheus.yaml");
  EXPECT_THAT(source, HasSubstr("apiVersion: 1\n"));
  EXPECT_THAT(source, HasSubstr("type: prometheus\n"));
}

}  // namespace
}  // namespace gnomon::dashboards
