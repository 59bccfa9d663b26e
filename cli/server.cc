#include "cli/server.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "cli/newest_names.h"
#include "protocol/client.h"
#include "protocol/client_arguments.h"
#include "protocol/json.h"
#include "protocol/json_text.h"

namespace gnomon::cli {

namespace {

constexpr const char* kUrlVariable = "GNOMON_URL";

[[noreturn]] void refuse_stranger(const std::string& url, const std::string& target, int status) {
  throw Error(fmt::format("{} answers, but is not a gnomon daemon (GET {}: status {})", url, target,
                          status));
}

}  // namespace

void add_url_option(Command& command, ServerOptions& options) {
  command.add_option("--url", options.access.url, "Where gnomond listens")
      ->envname(kUrlVariable)
      ->capture_default_str();
  add_access_options(command, options.access);
}

void add_url_option_beside(CommandOption& file, Command& command, ClientOptions& access,
                           const std::string& what) {
  command.add_option("--url,--server", access.url, what + " (or GNOMON_URL)")->excludes(&file);
  add_access_options(command, access);
}

std::string url_or_environment(const std::string& url, const std::string& fallback) {
  if (!url.empty()) return url;
  const char* value = std::getenv(kUrlVariable);
  return value == nullptr || *value == '\0' ? fallback : value;
}

boost::json::object answer_of_gnomond(const std::string& url, const std::string& target,
                                      const HttpResponse& answer, const char* member) {
  if (answer.status == 400 && answer.body.starts_with("This port speaks TLS")) {
    throw Error(fmt::format("{}: this port speaks TLS; give an https:// URL", url));
  }
  boost::system::error_code error;
  const boost::json::value body = boost::json::parse(answer.body, error);
  const bool fits = !error && body.is_object() &&
                    (body.get_object().contains(member) || body.get_object().contains("title"));
  if (!fits) refuse_stranger(url, target, answer.status);
  return body.get_object();
}

HttpClient connect(const ClientOptions& access) {
  try {
    return HttpClient(with_environment(access));
  } catch (const ConfigError& error) {
    throw as_option(error, "--url");
  }
}

Server::Server(const ClientOptions& access) : url_(access.url), client_(connect(access)) {}

// A refusal (of a token, say) is left to the request that follows.
void Server::meet() {
  if (met_) return;
  constexpr const char* kVersion = "/version";
  const HttpResponse answer = [&] {
    try {
      return client_.request("GET", kVersion);
    } catch (const ConnectionError& error) {
      throw ConnectionError(fmt::format("{}. Start gnomond, or name another with --url or {}",
                                        error.what(), kUrlVariable));
    }
  }();
  const boost::json::object body = answer_of_gnomond(url_, kVersion, answer, "name");
  if (answer.status == 200 && text_of(body, "name") != "gnomond") {
    refuse_stranger(url_, kVersion, answer.status);
  }
  met_ = true;
}

std::string Server::post(const std::string& target, const std::string& body,
                         std::chrono::milliseconds longest) {
  meet();
  return client_.checked("POST", target, body, longest).body;
}

std::string Server::text(const std::string& target) {
  meet();
  return client_.checked("GET", target).body;
}

void Server::put(const std::string& target, const std::string& body) {
  meet();
  client_.checked("PUT", target, body);
}

void Server::erase(const std::string& target, std::chrono::milliseconds longest) {
  meet();
  client_.checked("DELETE", target, {}, longest);
}

boost::json::value Server::get(const std::string& target) {
  std::string next;
  return get_page(target, next);
}

boost::json::value Server::get_page(const std::string& target, std::string& next) {
  meet();
  HttpResponse response = client_.checked("GET", target);
  next = response.next;
  try {
    return parse_json_exactly(response.body);
  } catch (const JsonError& error) {
    throw Error(fmt::format("GET {}: the answer cannot be read: {}", target, error.what()));
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
  std::vector<std::string> known;
  std::string found;
  for (const boost::json::value& value : runs) {
    const boost::json::object& row = value.as_object();
    std::string id = run_id_of(row);
    std::string full = text_of(row, "name") + "/" + text_of(row, "job_id");
    known.push_back(fmt::format("{} ({})", full, id));
    if (name == id || name == full || name == text_of(row, "name")) found = id;
  }
  if (found.empty()) {
    throw ConfigError("", 0, "RUN", name,
                      known.empty() ? "a run; there is none yet" : newest_names(known));
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
