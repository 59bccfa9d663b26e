#include "tests/controller/openapi_document.h"

#include <gtest/gtest.h>

#include "controller/api/openapi_document.h"
#include "controller/api/services.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::test {
namespace {

// What the routes are made of.
struct Parts {
  TemporaryDirectory folder;
  Metrics metrics;
  ReplayQueue queue;
  ChangeNotifiers notifiers;
  RunCache runs{metrics, queue, notifiers, {}, [] { return 0.0; }, [] { return 0.0; }};
  Leases leases{runs, metrics, queue};
  Ledger ledger{{.file = folder / "ledger.sqlite",
                 .queue_max = 16,
                 .readers = 1,
                 .on_commit = {},
                 .on_outcome = {}}};
  Authenticator authenticator{{}, [] { return 0.0; }, [] { return 0.0; }};
  Services services{ledger, runs, leases, metrics, queue, notifiers, authenticator, ""};
};

}  // namespace

namespace json = boost::json;

const std::vector<Route>& routes() {
  static const std::vector<Route> made = [] {
    Parts parts;
    std::vector<Route> all = all_routes(parts.services);
    all.push_back(page_route(parts.services));
    return all;
  }();
  return made;
}

const json::object& openapi() {
  static const json::value document = json::parse(openapi_document(routes()));
  return document.as_object();
}

const json::object& openapi_schema(const std::string& name) {
  static const json::object nothing;
  const json::value* found = openapi().at("components").at("schemas").as_object().if_contains(name);
  EXPECT_NE(found, nullptr) << "the document has no schema " << name;
  return found ? found->as_object() : nothing;
}

const json::object& resolved(const json::object& value) {
  const json::value* link = value.if_contains("$ref");
  if (link == nullptr) return value;
  static const json::value document(openapi());
  const json::string& path = link->as_string();  // "#/components/…"
  return resolved(document.at_pointer({path.data() + 1, path.size() - 1}).as_object());
}

std::string reference(const json::object& value) {
  const std::string path = text_at(value, "$ref");
  return path.substr(path.rfind('/') + 1);
}

std::string text_at(const json::object& object, const char* key) {
  const json::value* found = object.if_contains(key);
  return found && found->is_string() ? std::string(found->as_string()) : std::string();
}

}  // namespace gnomon::test
