// The table of routes: which handler answers a method and a path, how large a body it takes, and
// the problem documents for everything else.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "controller/api/request.h"
#include "controller/refusal.h"

namespace gnomon {

enum class BodyKind { kNone, kJson, kToml };

struct Route {
  std::string method;
  std::string pattern;  // "/v1/runs/{run}/steps"
  BodyKind body = BodyKind::kNone;
  size_t body_max = 0;  // bytes
  std::function<Response(Exchange&, const Request&)> handler;
  bool timed = true;  // false for long polls and streams
};

class Router {
 public:
  // Routes with the same pattern must differ in method. `fallback` answers GET of paths outside
  // /v1.
  Router(std::vector<Route> routes, Route fallback);

  // The route for a request, whose arguments are filled in. Throws Refusal: 404, 405 with what is
  // accepted.
  const Route& find(Request& request) const;
  // Throws Refusal 415 when the content type is not the route's.
  static void check_content_type(const Route& route, const Request& request);

 private:
  std::vector<Route> routes_;
  std::vector<std::vector<std::string>> parts_;  // of each pattern
  Route fallback_;
};

// "a=1&b=x%20y" decoded. Throws Refusal 400 on a broken escape.
std::map<std::string, std::string> parse_query(std::string_view query);
std::string percent_decode(std::string_view text, bool plus_is_space);

// Query parameters. All throw Refusal 400 that names the parameter, its value and the range.
int64_t query_integer(const Request& request, const std::string& name, int64_t absent, int64_t min,
                      int64_t max);
// "30", "30s" or "1.5s".
double query_seconds(const Request& request, const std::string& name, double absent, double max);

// The answer to whatever a handler threw.
Response problem_response(const Problem& problem);
Response response_for(std::exception_ptr error);

}  // namespace gnomon
