// The table of routes: which handler answers a method and a path, which body and which parameters
// it takes, and the problem documents for everything else. The document of the API gets all of that
// from here (openapi_routes.h); its sentences are in openapi/.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "controller/api/parameters.h"
#include "controller/api/request.h"
#include "controller/auth/http_error.h"

namespace gnomon {

enum class BodyKind { kNone, kJson, kToml };

struct Body {
  BodyKind kind = BodyKind::kNone;
  size_t max = 0;           // bytes
  const char* record = "";  // the message that it is, by the name of its schema
};
template <typename Message>
Body body_of(size_t max) {
  return {BodyKind::kJson, max, Message::kRecord.name};
}

struct Route {
  std::string method;
  std::string pattern;  // "/v1/runs/{run}/steps"
  Body body;
  std::function<Response(Exchange&, const Request&)> handler;
  bool timed = true;  // false for long polls and streams
  std::vector<QueryParameter> parameters = {};
  const char* rows = "";  // the schema of its rows, where the answer is a list of pages
  Access access = Access::kAdminister;  // unless the table of routes says otherwise
};

// The routes, with what they ask of whoever comes: GET `reads`, everything else `changes`.
std::vector<Route> with_access(std::vector<Route> routes, Access reads, Access changes);

class Router {
 public:
  // Routes with the same pattern must differ in method. `fallback` answers GET of paths outside
  // /v1.
  Router(std::vector<Route> routes, Route fallback);

  // The route for a request, whose arguments and declared parameters are filled in; that of GET for
  // HEAD. The fallback declares no parameters and ignores them. Throws HttpError: 404, 405 with
  // what is accepted.
  const Route& find(Request& request) const;
  const std::vector<Route>& routes() const { return routes_; }
  // Throws HttpError 415 when the content type is not the route's.
  static void check_content_type(const Route& route, const Request& request);

 private:
  std::vector<Route> routes_;
  std::vector<std::vector<std::string>> parts_;  // of each pattern
  Route fallback_;
};

// The answer to whatever a handler threw.
Response problem_response(const Problem& problem);
Response response_for(std::exception_ptr error);

}  // namespace gnomon
