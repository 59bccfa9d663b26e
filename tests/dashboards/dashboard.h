// Grafana dashboards as the tests see them.
#pragma once

#include <boost/json.hpp>
#include <map>
#include <string>
#include <vector>

namespace gnomon::dashboards {

struct Target {
  std::string panel;  // title
  std::string ref;
  std::string expr;
};

boost::json::object load_dashboard(const std::string& file);
// Every query of every panel, and of the annotations (panel "annotation NAME").
std::vector<Target> targets(const boost::json::object& dashboard);
// Names of metrics in a PromQL expression that begin with gnomon_.
std::vector<std::string> metrics_in(const std::string& expr);
// "$name" and "${name}" replaced.
std::string substitute(std::string expr, const std::map<std::string, std::string>& variables);

}  // namespace gnomon::dashboards
