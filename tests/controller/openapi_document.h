// The document of the API as the tests look at it.
#pragma once

#include <boost/json.hpp>
#include <string>
#include <vector>

#include "controller/api/router.h"

namespace gnomon::test {

// A daemon's routes with the page's, whose handlers are not to be called; and what the document
// says of them.
const std::vector<Route>& routes();
const boost::json::object& openapi();
// components/schemas/NAME; fails the test when there is none.
const boost::json::object& openapi_schema(const std::string& name);
// What a $ref leads to, as far as it goes; `value` itself when it is none.
const boost::json::object& resolved(const boost::json::object& value);
// The last part of a $ref; empty when there is none.
std::string reference(const boost::json::object& value);
std::string text_at(const boost::json::object& object, const char* key);

}  // namespace gnomon::test
