// The routes in the document of the API: parameters, bodies, limits, roles and what any request may
// be answered with. Sentences, answers and links of an operation are written in openapi/.
#pragma once

#include <boost/json/object.hpp>
#include <vector>

#include "controller/api/router.h"

namespace gnomon {

// Adds to each operation of an OpenAPI document what its route says. What an operation has already
// stays. A route without an operation is left out.
void add_routes(boost::json::object& document, const std::vector<Route>& routes);

}  // namespace gnomon
