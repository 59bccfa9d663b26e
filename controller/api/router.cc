#include "controller/api/router.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cmath>
#include <mutex>
#include <set>

#include "protocol/json.h"

namespace gnomon {
namespace {

const std::string kGet = "GET";

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

// The same trouble of a thousand requests is one line in ten seconds.
void log_trouble(const std::string& trouble) {
  constexpr auto kEvery = std::chrono::seconds(10);
  static std::mutex mutex;
  static std::string logged;
  static std::chrono::steady_clock::time_point logged_at;
  const std::lock_guard lock(mutex);
  const auto now = std::chrono::steady_clock::now();
  if (trouble == logged && now - logged_at < kEvery) return;
  spdlog::error("{}", trouble);
  logged = trouble;
  logged_at = now;
}

}  // namespace

std::vector<Route> with_access(std::vector<Route> routes, Access reads, Access changes) {
  for (Route& route : routes) route.access = route.method == kGet ? reads : changes;
  return routes;
}

Router::Router(std::vector<Route> routes, Route fallback)
    : routes_(std::move(routes)), fallback_(std::move(fallback)) {
  for (const Route& route : routes_) {
    parts_.push_back(split_path(route.pattern));
  }
}

const Route& Router::find(Request& request) const {
  const std::vector<std::string> path = split_path(request.path);
  const std::string& method = request.method == "HEAD" ? kGet : request.method;
  std::set<std::string> methods;
  for (size_t i = 0; i < routes_.size(); ++i) {
    std::vector<std::string> arguments;
    if (!matches(parts_[i], path, arguments)) {
      continue;
    }
    if (routes_[i].method == method) {
      request.arguments = std::move(arguments);
      request.parameters = &routes_[i].parameters;
      return routes_[i];
    }
    methods.insert(routes_[i].method);
  }
  if (methods.empty() && !request.path.starts_with("/v1")) {
    if (method == fallback_.method) {
      return fallback_;
    }
    methods.insert(fallback_.method);
  }
  if (!methods.empty()) {
    if (methods.contains(kGet)) methods.insert("HEAD");
    throw HttpError(405, "Method not allowed", fmt::format("{} {}", request.method, request.path),
                    fmt::format("{}", fmt::join(methods, ", ")));
  }
  throw HttpError(404, "Unknown path", fmt::format("there is nothing at {}", request.path),
                  "a path of /openapi.json, for example /v1/runs");
}

void Router::check_content_type(const Route& route, const Request& request) {
  const std::string& type = request.content_type;
  if (route.body.kind == BodyKind::kNone || type.empty() || type == "application/json") {
    return;
  }
  if (route.body.kind == BodyKind::kToml &&
      (type == "application/toml" || type == "text/toml" || type == "text/plain")) {
    return;
  }
  throw HttpError(415, "Unsupported media type", fmt::format("the body is {}", type),
                  route.body.kind == BodyKind::kJson
                      ? "application/json"
                      : "application/toml, text/plain, or application/json");
}

Response problem_response(const Problem& problem) {
  Response response{problem.status, "application/problem+json", to_json(problem), {}, false};
  if (problem.status == 405) {
    response.headers.emplace_back("Allow", problem.accepted);
  }
  if (problem.status == 401) {
    response.headers.emplace_back("WWW-Authenticate", "Bearer realm=\"gnomon\"");
  }
  if (problem.status == 503 || problem.status == 507) {
    response.headers.emplace_back("Retry-After", "1");
  }
  return response;
}

Response response_for(std::exception_ptr error) {
  Problem problem;
  double retry_after = 0;
  try {
    std::rethrow_exception(error);
  } catch (const HttpError& http) {
    problem = http.problem();
    retry_after = http.retry_after();
  } catch (const TooManyItems& items) {
    problem = {"about:blank", "Too many items in one message", 413, items.what(), items.accepted()};
  } catch (const JsonError& json) {
    problem = {"about:blank", "The body is not the message expected", 400, json.what(),
               json.accepted()};
  } catch (const ConfigError& config) {
    problem = {"about:blank", "Value not accepted", 400, config.what(), config.accepted()};
  } catch (const LedgerBusy& busy) {
    problem = {"about:blank", "Too many requests are waiting", 503, busy.what(),
               "the same request a little later"};
  } catch (const LedgerLost& lost) {  // the daemon's log has it, once
    problem = {"about:blank", "The ledger is not in its place", 503, lost.what(),
               "the same request when it is back; nothing of it has been recorded"};
  } catch (const LedgerError& ledger) {
    if (ledger.took_too_long())
      return problem_response({"about:blank", "Too much at once", 400, ledger.what(),
                               "a request for less: fewer steps, or a lower limit"});
    if (!ledger.disk_full()) log_trouble(ledger.what());  // daemon/write_trouble.h
    problem = {"about:blank",
               ledger.disk_full() ? "The ledger's disk is full" : "The ledger does not work",
               ledger.disk_full() ? 507 : 503, ledger.what(),
               "the same request later; nothing of it has been recorded. If it stays so, "
               "`gnomon ledger check` says what is damaged"};
  } catch (const std::bad_alloc&) {
    log_trouble("a request failed: there is no memory for it");
    problem = {"about:blank", "Out of memory", 503, "the daemon has no memory for this request",
               "the same request a little later"};
  } catch (const std::exception& other) {
    spdlog::error("a request failed: {}", other.what());
    problem = {"about:blank", "Internal error", 500, other.what(), ""};
  }
  Response response = problem_response(problem);
  if (retry_after > 0) {
    response.headers.emplace_back("Retry-After", fmt::format("{:.0f}", std::ceil(retry_after)));
  }
  return response;
}

}  // namespace gnomon
