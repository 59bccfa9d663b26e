#include "tests/dashboards/dashboard.h"

#include <regex>

#include "base/files.h"

namespace gnomon::dashboards {

boost::json::object load_dashboard(const std::string& file) {
  return boost::json::parse(read_file(file)).as_object();
}

std::vector<Target> targets(const boost::json::object& dashboard) {
  std::vector<Target> found;
  for (const boost::json::value& panel : dashboard.at("panels").as_array()) {
    std::string title(panel.at("title").as_string());
    for (const boost::json::value& target : panel.at("targets").as_array()) {
      found.push_back({title, std::string(target.at("refId").as_string()),
                       std::string(target.at("expr").as_string())});
    }
  }
  for (const boost::json::value& annotation : dashboard.at("annotations").at("list").as_array()) {
    if (!annotation.as_object().contains("expr")) continue;
    found.push_back({"annotation " + std::string(annotation.at("name").as_string()), "A",
                     std::string(annotation.at("expr").as_string())});
  }
  return found;
}

std::vector<std::string> metrics_in(const std::string& expr) {
  static const std::regex kName("gnomon_[a-z0-9_]+");
  std::vector<std::string> names;
  for (std::sregex_iterator match(expr.begin(), expr.end(), kName), end; match != end; ++match) {
    names.push_back(match->str());
  }
  return names;
}

std::string substitute(std::string expr, const std::map<std::string, std::string>& variables) {
  for (const auto& [name, value] : variables) {
    for (const std::string& mark : {"${" + name + "}", "$" + name}) {
      for (size_t at = expr.find(mark); at != std::string::npos; at = expr.find(mark, at)) {
        expr.replace(at, mark.size(), value);
        at += value.size();
      }
    }
  }
  return expr;
}

}  // namespace gnomon::dashboards
