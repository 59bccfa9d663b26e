// Every struct of protocol/messages.h agrees with its schema in the document of the API, in both
// directions: members, which of them are required, their types, their enumerations.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <type_traits>

#include "protocol/json_members.h"
#include "protocol/text_rules.h"
#include "tests/controller/openapi_document.h"

namespace gnomon {
namespace {

namespace json = boost::json;
using test::openapi_schema;
using test::reference;
using test::resolved;
using test::text_at;

template <typename T>
struct NameOf;
#define GNOMON_NAME(Message)                       \
  template <>                                      \
  struct NameOf<Message> {                         \
    static constexpr const char* kName = #Message; \
  };
GNOMON_EACH_MESSAGE(GNOMON_NAME)
#undef GNOMON_NAME

// What a C++ type is in JSON: "string", "number", "int64", "int32", "boolean", "[T]" or a struct.
template <typename T>
struct KindOf {
  static std::string get() { return NameOf<T>::kName; }
};
template <>
struct KindOf<std::string> {
  static std::string get() { return "string"; }
};
template <>
struct KindOf<double> {
  static std::string get() { return "number"; }
};
template <>
struct KindOf<int64_t> {
  static std::string get() { return "int64"; }
};
template <>
struct KindOf<int> {
  static std::string get() { return "int32"; }
};
template <>
struct KindOf<bool> {
  static std::string get() { return "boolean"; }
};
template <typename T>
struct KindOf<std::optional<T>> : KindOf<T> {};
template <typename T>
struct KindOf<std::vector<T>> {
  static std::string get() { return fmt::format("[{}]", KindOf<T>::get()); }
};

template <>
struct KindOf<Labels> {
  static std::string get() { return "Labels"; }
};

struct Member {
  std::string kind;
  bool required = false;
  bool operator==(const Member&) const = default;
};

void PrintTo(const Member& member, std::ostream* out) {
  *out << (member.required ? "required " : "optional ") << member.kind;
}

class Collector {
 public:
  template <typename T>
  void required(const char* name, const T&) {
    members[name] = {KindOf<T>::get(), true};
  }
  template <typename T>
  void optional(const char* name, const T&) {
    members[name] = {KindOf<T>::get(), false};
  }
  std::map<std::string, Member> members;
};

template <typename Message>
std::map<std::string, Member> members_of_struct() {
  Collector collector;
  Message message;
  visit_members(collector, message);
  return collector.members;
}

// The same of a schema.
std::string kind_of_schema(const json::object& schema) {
  const std::string link = reference(schema);
  if (link == "Number") return "number";
  const json::object& target = resolved(schema);
  const std::string type = text_at(target, "type");
  if (type == "object") return link;
  if (type == "array") return fmt::format("[{}]", kind_of_schema(target.at("items").as_object()));
  if (type == "integer") return text_at(target, "format");
  return type;
}

std::map<std::string, Member> members_of_schema(const std::string& name) {
  std::map<std::string, Member> members;
  const json::object& schema = openapi_schema(name);
  for (const auto& [key, value] : schema.at("properties").as_object()) {
    members[key] = {kind_of_schema(value.as_object()), false};
  }
  if (const json::value* required = schema.if_contains("required")) {
    for (const json::value& member : required->as_array()) {
      members[std::string(member.as_string())].required = true;
    }
  }
  return members;
}

TEST(OpenApiMessagesTest, EveryStructHasTheMembersOfItsSchemaAndNoOthers) {
#define GNOMON_COMPARE(Message) \
  EXPECT_EQ(members_of_struct<Message>(), members_of_schema(#Message)) << #Message;
  GNOMON_EACH_MESSAGE(GNOMON_COMPARE)
#undef GNOMON_COMPARE
}

// As the reader refuses them. A problem document may be extended (RFC 9457, section 3.2).
TEST(OpenApiMessagesTest, UnknownMembersAreRefused) {
#define GNOMON_IS_CLOSED(Message)                                      \
  EXPECT_EQ(openapi_schema(#Message).contains("additionalProperties"), \
            !(std::is_same_v<Message, Problem>))                       \
      << #Message;
  GNOMON_EACH_MESSAGE(GNOMON_IS_CLOSED)
#undef GNOMON_IS_CLOSED
}

// "" when the schema bounds this text as its rule does.
std::string difference_of_text(const std::string& member, const json::object& schema) {
  if (!reference(schema).empty() && resolved(schema).contains("enum")) return {};
  if (schema.contains("enum")) return {};
  const TextRule rule = text_rule(member);
  const json::value* own = schema.if_contains("maxLength");
  const json::value* bound = own ? own : resolved(schema).if_contains("maxLength");
  if (!bound) return "no maxLength";
  const int64_t most = bound->as_int64();
  // A member may be stricter than its rule.
  if (own ? most > static_cast<int64_t>(rule.bytes_max)
          : most != static_cast<int64_t>(rule.bytes_max)) {
    return fmt::format("maxLength {} for {} bytes", most, rule.bytes_max);
  }
  if (rule.one_line && !resolved(schema).contains("pattern")) return "no pattern";
  return {};
}

template <typename Message>
void expect_bounded_texts() {
  for (const auto& [key, value] :
       openapi_schema(NameOf<Message>::kName).at("properties").as_object()) {
    const json::object* schema = &value.as_object();
    if (text_at(resolved(*schema), "type") == "array") {
      schema = &resolved(*schema).at("items").as_object();
    }
    if (kind_of_schema(*schema) != "string") continue;
    EXPECT_EQ(difference_of_text(std::string(key), *schema), "")
        << NameOf<Message>::kName << "." << std::string(key);
  }
}

TEST(OpenApiMessagesTest, TextsOfWhatIsSentToTheControllerAreBoundedAsTheirRulesSay) {
  expect_bounded_texts<Fingerprint>();
  expect_bounded_texts<InjectedFault>();
  expect_bounded_texts<RunRegistration>();
  expect_bounded_texts<AttemptStart>();
  expect_bounded_texts<DeviceHealth>();
  expect_bounded_texts<StepReport>();
  expect_bounded_texts<CheckpointReport>();
  expect_bounded_texts<TrainerNotice>();
  expect_bounded_texts<RunFinished>();
  expect_bounded_texts<DirectiveAck>();
  expect_bounded_texts<StatisticsRow>();
  expect_bounded_texts<OverrideRequest>();
  expect_bounded_texts<LeaseRequest>();
  expect_bounded_texts<ReplayStep>();
  expect_bounded_texts<SiteScoreRow>();
  expect_bounded_texts<LeaseFailure>();
}

std::set<std::string> words(const json::array& array) {
  std::set<std::string> result;
  for (const json::value& value : array) result.emplace(value.as_string());
  return result;
}

TEST(OpenApiMessagesTest, TheListOfMessagesHasEveryStructOfTheHeader) {
  std::set<std::string> listed;
#define GNOMON_INSERT(Message) listed.insert(#Message);
  GNOMON_EACH_MESSAGE(GNOMON_INSERT)
#undef GNOMON_INSERT
  std::set<std::string> declared;
  std::ifstream header(GNOMON_MESSAGES_HEADER);
  const std::regex declaration("^struct (\\w+) \\{");
  for (std::string line; std::getline(header, line);) {
    std::smatch found;
    if (std::regex_search(line, found, declaration)) declared.insert(found[1]);
  }
  EXPECT_EQ(listed, declared);
}

TEST(OpenApiMessagesTest, ThrottleReasonsAreThoseThatTheDocumentHas) {
  const json::object& reasons =
      openapi_schema("DeviceHealth").at("properties").at("throttle_reasons").as_object();
  EXPECT_EQ(words(reasons.at("items").at("enum").as_array()),
            std::set<std::string>(kThrottleReasons.begin(), kThrottleReasons.end()));
}

}  // namespace
}  // namespace gnomon
