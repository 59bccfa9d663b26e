#include "controller/api/router.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <charconv>
#include <set>

#include "protocol/json.h"

namespace gnomon {
namespace {

std::vector<std::string> split_path(std::string_view path) {
  std::vector<std::string> parts;
  size_t start = 1;
  while (start <= path.size() && !path.empty()) {
    size_t end = std::min(path.find('/', start), path.size());
    parts.emplace_back(path.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

bool matches(const std::vector<std::string>& pattern, const std::vector<std::string>& path,
             std::vector<std::string>& arguments) {
  if (pattern.size() != path.size()) {
    return false;
  }
  arguments.clear();
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i].starts_with('{')) {
      arguments.push_back(path[i]);
    } else if (pattern[i] != path[i]) {
      return false;
    }
  }
  return true;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Router::Router(std::vector<Route> routes, Route fallback)
    : routes_(std::move(routes)), fallback_(std::move(fallback)) {
  for (const Route& route : routes_) {
    parts_.push_back(split_path(route.pattern));
  }
}

const Route& Router::find(Request& request) const {
  std::vector<std::string> path = split_path(request.path);
  std::set<std::string> methods;
  for (size_t i = 0; i < routes_.size(); ++i) {
    std::vector<std::string> arguments;
    if (!matches(parts_[i], path, arguments)) {
      continue;
    }
    if (routes_[i].method == request.method) {
      request.arguments = std::move(arguments);
      return routes_[i];
    }
    methods.insert(routes_[i].method);
  }
  if (methods.empty() && !request.path.starts_with("/v1")) {
    if (request.method == fallback_.method) {
      return fallback_;
    }
    methods.insert(fallback_.method);
  }
  if (!methods.empty()) {
    throw Refusal(405, "Method not allowed", fmt::format("{} {}", request.method, request.path),
                  fmt::format("{}", fmt::join(methods, ", ")));
  }
  throw Refusal(404, "Unknown path", fmt::format("there is nothing at {}", request.path),
                "a path of docs/api.md, for example /v1/runs");
}

void Router::check_content_type(const Route& route, const Request& request) {
  const std::string& type = request.content_type;
  if (route.body == BodyKind::kNone || type.empty() || type == "application/json") {
    return;
  }
  if (route.body == BodyKind::kToml &&
      (type == "application/toml" || type == "text/toml" || type == "text/plain")) {
    return;
  }
  throw Refusal(415, "Unsupported media type", fmt::format("the body is {}", type),
                route.body == BodyKind::kJson
                    ? "application/json"
                    : "application/toml, text/plain, or application/json");
}

std::string percent_decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
      if (low < 0) {
        throw Refusal(400, "Broken escape in the address", std::string(text),
                      "% and two hexadecimal digits");
      }
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i] == '+' && plus_is_space ? ' ' : text[i];
    }
  }
  return decoded;
}

std::map<std::string, std::string> parse_query(std::string_view query) {
  std::map<std::string, std::string> values;
  while (!query.empty()) {
    size_t end = std::min(query.find('&'), query.size());
    std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    size_t equals = std::min(pair.find('='), pair.size());
    std::string_view value = equals < pair.size() ? pair.substr(equals + 1) : std::string_view();
    if (!pair.empty()) {
      values[percent_decode(pair.substr(0, equals), true)] = percent_decode(value, true);
    }
  }
  return values;
}

int64_t query_integer(const Request& request, const std::string& name, int64_t absent, int64_t min,
                      int64_t max) {
  auto found = request.query.find(name);
  if (found == request.query.end()) {
    return absent;
  }
  const std::string& text = found->second;
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    throw Refusal(400, "Parameter not accepted", fmt::format("{} is \"{}\"", name, text),
                  fmt::format("an integer from {} to {}", min, max));
  }
  return value;
}

double query_seconds(const Request& request, const std::string& name, double absent, double max) {
  auto found = request.query.find(name);
  if (found == request.query.end()) {
    return absent;
  }
  std::string_view text = found->second;
  if (text.ends_with('s')) {
    text.remove_suffix(1);
  }
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= 0 && value <= max)) {
    throw Refusal(400, "Parameter not accepted", fmt::format("{} is \"{}\"", name, found->second),
                  fmt::format("seconds from 0 to {}, as 30 or 30s", max));
  }
  return value;
}

Response problem_response(const Problem& problem) {
  Response response{problem.status, "application/problem+json", to_json(problem), {}, false};
  if (problem.status == 405) {
    response.headers.emplace_back("Allow", problem.accepted);
  }
  if (problem.status == 503 || problem.status == 507) {
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

Response response_for(std::exception_ptr error) {
  Problem problem;
  try {
    std::rethrow_exception(error);
  } catch (const Refusal& refusal) {
    problem = refusal.problem();
  } catch (const JsonError& json) {
    problem = {"about:blank", "The body is not the message expected", 400, json.what(),
               json.accepted()};
  } catch (const ConfigError& config) {
    problem = {"about:blank", "Value not accepted", 400, config.what(), config.accepted()};
  } catch (const LedgerBusy& busy) {
    problem = {"about:blank", "Too many requests are waiting", 503, busy.what(),
               "the same request a little later"};
  } catch (const LedgerError& ledger) {
    spdlog::error("{}", ledger.what());
    problem = {"about:blank",
               ledger.disk_full() ? "The ledger's disk is full" : "The ledger cannot be written",
               ledger.disk_full() ? 507 : 503, ledger.what(),
               "the same request later; nothing of it has been recorded"};
  } catch (const std::exception& other) {
    spdlog::error("a request failed: {}", other.what());
    problem = {"about:blank", "Internal error", 500, other.what(), ""};
  }
  return problem_response(problem);
}

}  // namespace gnomon
