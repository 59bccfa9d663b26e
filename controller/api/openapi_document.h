// The description of the API that the daemon serves at /openapi.json: OpenAPI 3.1. Sentences,
// answers and examples are written in YAML (openapi/). The schemas of records come from their
// members, and parameters, bodies, limits and roles from the routes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "controller/api/router.h"

namespace gnomon {

// Made by openapi/assemble.py when the daemon is built: all but records and routes.
extern const std::string_view kOpenapiSource;

std::string openapi_document(const std::vector<Route>& routes);

}  // namespace gnomon
