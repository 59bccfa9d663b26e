// The description of the API that the daemon serves at /openapi.json: OpenAPI 3.1. Paths, rows and
// examples are written in YAML (openapi/), the schemas of records come from their members.
#pragma once

#include <string_view>

namespace gnomon {

// Made by openapi/assemble.py when the daemon is built: all but the records.
extern const std::string_view kOpenapiSource;

std::string_view openapi_document();

}  // namespace gnomon
