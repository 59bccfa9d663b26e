// The description of the API that the daemon serves at /openapi.json: OpenAPI 3.1, made by
// openapi/assemble.py of the files beside it when the daemon is built.
#pragma once

#include <string_view>

namespace gnomon {

std::string_view openapi_document();

}  // namespace gnomon
