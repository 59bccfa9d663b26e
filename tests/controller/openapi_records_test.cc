// What the document of the API says of the records comes from their members; this looks at the
// document as a whole.
#include <gmock/gmock.h>

#include <set>

#include "protocol/records.h"
#include "tests/controller/openapi_document.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using test::openapi_schema;

void collect(const json::value& value, std::set<std::string>& references) {
  if (const json::object* object = value.if_object()) {
    for (const auto& [key, inner] : *object) {
      if (key == "$ref") references.emplace(inner.as_string());
      collect(inner, references);
    }
  } else if (const json::array* array = value.if_array()) {
    for (const json::value& inner : *array) collect(inner, references);
  }
}

TEST(OpenApiRecordsTest, EveryReferenceLeadsToSomethingAndEveryRecordIsReferredTo) {
  std::set<std::string> references;
  const json::value document(test::openapi());
  collect(document, references);
  for (const std::string& reference : references) {
    boost::system::error_code error;
    EXPECT_NE(document.find_pointer(reference.substr(1), error), nullptr) << reference;
  }
#define GNOMON_IS_USED(R) \
  EXPECT_TRUE(references.contains(std::string("#/components/schemas/") + R::kRecord.name)) << #R;
  GNOMON_EACH_RECORD(GNOMON_IS_USED)
#undef GNOMON_IS_USED
  for (const auto& [kind, members] : test::openapi().at("components").as_object()) {
    if (kind == "securitySchemes") continue;
    for (const auto& [name, member] : members.as_object()) {
      const std::string reference = "#/components/" + std::string(kind) + "/" + std::string(name);
      EXPECT_TRUE(references.contains(reference)) << reference << " is used nowhere";
    }
  }
}

TEST(OpenApiRecordsTest, ASchemaHasTypesBoundsWordsAndWhatIsRequired) {
  const json::object& step = openapi_schema("StepReport");
  EXPECT_EQ(step.at("additionalProperties"), json::value(false));
  EXPECT_EQ(step.at("required"), json::value({"attempt", "step", "plan_version", "loss"}));
  const json::object& members = step.at("properties").as_object();
  EXPECT_EQ(members.at("step").at("minimum"), json::value(1));
  EXPECT_EQ(members.at("step").at("maximum"), json::value(1'000'000'000));
  EXPECT_EQ(members.at("step").at("format"), json::value("int64"));
  EXPECT_EQ(members.at("loss").at("$ref"), json::value("#/components/schemas/Number"));
  EXPECT_EQ(members.at("weights_hash").at("pattern"), json::value("^[!-~]{1,128}$"));
  EXPECT_EQ(members.at("device_health").at("$ref"),
            json::value("#/components/schemas/DeviceHealth"));
  const json::object& health = openapi_schema("DeviceHealth").at("properties").as_object();
  EXPECT_EQ(health.at("device").at("maxLength"), json::value(100));
  EXPECT_EQ(health.at("throttle_reasons").at("items").at("enum").as_array().size(),
            kThrottleReasons.size());
  EXPECT_EQ(openapi_schema("Directive").at("properties").at("number").at("minimum"), json::value(1))
      << "from YAML";
  EXPECT_EQ(openapi_schema("StepBatch").at("properties").at("steps").at("maxItems"),
            json::value(10'000));
  EXPECT_FALSE(openapi_schema("Problem").contains("additionalProperties"));
}

}  // namespace
}  // namespace gnomon
