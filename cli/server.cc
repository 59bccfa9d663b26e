#include "cli/server.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "protocol/client_arguments.h"
#include "protocol/json.h"
#include "protocol/json_text.h"

namespace gnomon::cli {

void add_url_option(CLI::App& command, ServerOptions& options) {
  command.add_option("--url", options.access.url, "Where gnomond listens")
      ->envname("GNOMON_URL")
      ->capture_default_str();
  add_access_options(command, options.access);
}

HttpClient connect(const ClientOptions& access) {
  try {
    return HttpClient(with_environment(access));
  } catch (const ConfigError& error) {
    throw as_option(error, "--url");
  }
}

Server::Server(const ClientOptions& access) : client_(connect(access)) {}

std::string Server::post(const std::string& target, const std::string& body,
                         std::chrono::milliseconds longest) {
  return client_.checked("POST", target, body, longest).body;
}

void Server::erase(const std::string& target, std::chrono::milliseconds longest) {
  client_.checked("DELETE", target, {}, longest);
}

boost::json::value Server::get(const std::string& target) {
  std::string next;
  return get_page(target, next);
}

boost::json::value Server::get_page(const std::string& target, std::string& next) {
  HttpResponse response = client_.checked("GET", target);
  next = response.next;
  try {
    return parse_json_exactly(response.body);
  } catch (const JsonError& error) {
    throw Error(fmt::format("GET {}: the answer is no JSON: {}", target, error.what()));
  }
}

boost::json::array Server::get_list(const std::string& target) {
  boost::json::array list;
  std::string next = target;
  while (!next.empty()) {
    const std::string asked = next;
    boost::json::value page = get_page(asked, next);
    if (!page.is_array()) break;
    for (boost::json::value& row : page.get_array()) list.push_back(std::move(row));
  }
  return list;
}

std::string Server::resolve_run(const std::string& name) {
  boost::json::array runs = get_list("/v1/runs");
  std::string known;
  std::string found;
  for (const boost::json::value& value : runs) {
    const boost::json::object& row = value.as_object();
    std::string id = run_id_of(row);
    std::string full = text_of(row, "name") + "/" + text_of(row, "job_id");
    known += fmt::format("{}{} ({})", known.empty() ? "" : ", ", full, id);
    if (name == id || name == full || name == text_of(row, "name")) found = id;
  }
  if (found.empty()) {
    throw ConfigError("", 0, "RUN", name, known.empty() ? "a run; there is none yet" : known);
  }
  return found;
}

std::string text_of(const boost::json::object& row, const char* key) {
  const boost::json::value* value = row.if_contains(key);
  if (value == nullptr || value->is_null()) return {};
  if (value->is_string()) return std::string(value->get_string());
  return boost::json::serialize(*value);
}

double number_of(const boost::json::object& row, const char* key) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const boost::json::value* value = row.if_contains(key);
  if (value == nullptr) return kNan;
  if (value->is_number()) return value->to_number<double>();
  if (value->is_bool()) return value->get_bool() ? 1 : 0;
  if (!value->is_string()) return kNan;
  if (value->get_string() == "Infinity") return std::numeric_limits<double>::infinity();
  if (value->get_string() == "-Infinity") return -std::numeric_limits<double>::infinity();
  return kNan;
}

int64_t integer_of(const boost::json::object& row, const char* key) {
  double value = number_of(row, key);
  return std::isfinite(value) ? static_cast<int64_t>(std::llround(value)) : 0;
}

std::string run_id_of(const boost::json::object& row) {
  std::string id = text_of(row, row.contains("run") ? "run" : "id");
  return id.starts_with("run-") ? id : "run-" + id;
}

}  // namespace gnomon::cli
