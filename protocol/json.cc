#include "protocol/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <cmath>
#include <limits>
#include <type_traits>

#include "protocol/json_members.h"
#include "protocol/json_text.h"
#include "protocol/value_rules.h"

namespace gnomon {
namespace {

namespace json = boost::json;

std::string kind_of(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::object:
      return "an object";
    case json::kind::array:
      return "an array";
    default:
      break;
  }
  constexpr size_t kShownMax = 80;
  std::string text = json::serialize(value);
  return text.size() <= kShownMax ? text : text.substr(0, kShownMax) + "...";
}

// Bytes that are no UTF-8 (a file name in an error message, say) become '?': peers refuse such
// text.
std::string valid_utf8(const std::string& text) {
  std::string result = text;
  for (size_t i = 0; i < result.size();) {
    const auto lead = static_cast<unsigned char>(result[i]);
    const size_t length = lead < 0x80                   ? 1
                          : lead >= 0xc2 && lead < 0xe0 ? 2
                          : lead >= 0xe0 && lead < 0xf0 ? 3
                          : lead >= 0xf0 && lead < 0xf5 ? 4
                                                        : 0;
    bool good = length > 0 && i + length <= result.size();
    for (size_t k = 1; good && k < length; ++k) {
      const auto next = static_cast<unsigned char>(result[i + k]);
      unsigned char low = 0x80;
      unsigned char high = 0xbf;
      if (k == 1 && lead == 0xe0) low = 0xa0;   // overlong
      if (k == 1 && lead == 0xed) high = 0x9f;  // surrogates
      if (k == 1 && lead == 0xf0) low = 0x90;   // overlong
      if (k == 1 && lead == 0xf4) high = 0x8f;  // beyond U+10FFFF
      good = next >= low && next <= high;
    }
    if (!good) result[i] = '?';
    i += good ? length : 1;
  }
  return result;
}

// Where a value stands in its message. It costs nothing until an error must name it; what it was
// made of must live as long.
class Place {
 public:
  Place() = default;  // the message
  Place(const Place& parent, std::string_view member) : parent_(&parent), member_(member) {}
  Place(const Place& parent, size_t index) : parent_(&parent), index_(index) {}

  // "steps[3].loss"; empty for the message itself.
  std::string text() const {
    if (parent_ == nullptr) return {};
    const std::string before = parent_->text();
    if (member_.empty()) return fmt::format("{}[{}]", before, index_);
    return before.empty() ? std::string(member_) : fmt::format("{}.{}", before, member_);
  }

 private:
  const Place* parent_ = nullptr;
  std::string_view member_;  // empty: an item of an array
  size_t index_ = 0;
};

template <typename T>
json::value write_value(const T& value);

class Writer {
 public:
  template <typename T>
  void required(const char* name, const T& value) {
    object_.emplace(name, write_value(value));
  }
  template <typename T>
  void optional(const char* name, const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (value.empty() && is_given_hash(name)) return;
    }
    required(name, value);
  }
  template <typename T>
  void optional(const char* name, const std::optional<T>& value) {
    if (value) required(name, *value);
  }
  json::object take() { return std::move(object_); }

 private:
  json::object object_;
};

template <typename T>
json::value write_value(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(value)) return json::value("NaN");
    if (std::isinf(value)) return json::value(value > 0 ? "Infinity" : "-Infinity");
    return json::value(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return json::value(valid_utf8(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return json::value(value);
  } else if constexpr (IsVector<T>::value) {
    json::array array;
    array.reserve(value.size());
    for (const auto& item : value) array.push_back(write_value(item));
    return array;
  } else if constexpr (std::is_same_v<T, Labels>) {
    json::object object;
    for (const auto& [key, text] : value) object.emplace(valid_utf8(key), write_value(text));
    return object;
  } else {
    Writer writer;
    visit_members(writer, const_cast<T&>(value));  // the writer only reads
    return writer.take();
  }
}

void read_value(const json::value& from, const Place& place, std::string& to) {
  const json::string* text = from.if_string();
  if (text == nullptr) throw JsonError(place.text(), kind_of(from), "a string");
  to.assign(text->data(), text->size());
}

void read_value(const json::value& from, const Place& place, bool& to) {
  if (!from.is_bool()) throw JsonError(place.text(), kind_of(from), "true or false");
  to = from.get_bool();
}

void read_value(const json::value& from, const Place& place, int64_t& to) {
  if (!from.is_int64()) throw JsonError(place.text(), kind_of(from), "a whole number of 64 bits");
  to = from.get_int64();
}

void read_value(const json::value& from, const Place& place, int& to) {
  int64_t wide = 0;
  read_value(from, place, wide);
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    throw JsonError(place.text(), kind_of(from), "a whole number of 32 bits");
  }
  to = static_cast<int>(wide);
}

void read_value(const json::value& from, const Place& place, double& to) {
  if (from.is_double()) {
    to = from.get_double();
  } else if (from.is_int64()) {
    to = static_cast<double>(from.get_int64());
  } else if (from.is_uint64()) {
    to = static_cast<double>(from.get_uint64());
  } else if (from.is_string() && from.get_string() == "NaN") {
    to = std::numeric_limits<double>::quiet_NaN();
  } else if (from.is_string() && from.get_string() == "Infinity") {
    to = std::numeric_limits<double>::infinity();
  } else if (from.is_string() && from.get_string() == "-Infinity") {
    to = -std::numeric_limits<double>::infinity();
  } else {
    throw JsonError(place.text(), kind_of(from),
                    "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
  }
}

void read_value(const json::value& from, const Place& place, Labels& to) {
  const json::object* object = from.if_object();
  if (object == nullptr) throw JsonError(place.text(), kind_of(from), "an object");
  to.clear();
  for (const auto& member : *object) {
    const std::string key(member.key().data(), member.key().size());
    read_value(member.value(), Place(place, key), to[key]);
  }
}

template <typename T>
void read_value(const json::value& from, const Place& place, std::vector<T>& to);
template <typename T>
requires std::is_class_v<T>
void read_value(const json::value& from, const Place& place, T& to);

// The names of a message's members, for the words of a refusal.
struct Names {
  std::vector<std::string_view> all;
  template <typename T>
  void required(const char* name, const T&) {
    all.emplace_back(name);
  }
  template <typename T>
  void optional(const char* name, const T&) {
    all.emplace_back(name);
  }
};

class Reader {
 public:
  Reader(const json::object& object, const Place& place) : object_(object), place_(place) {}

  template <typename T>
  void required(const char* name, T& value) {
    if (!read(name, value)) {
      throw JsonError(Place(place_, name).text(), "nothing", fmt::format("the member {}", name));
    }
  }
  template <typename T>
  void optional(const char* name, T& value) {
    read(name, value);
  }
  template <typename T>
  void optional(const char* name, std::optional<T>& value) {
    T present{};
    if (read(name, present)) value = std::move(present);
  }
  bool has_seen_all() const { return found_ == object_.size(); }
  [[noreturn]] void refuse_unknown(const std::vector<std::string_view>& known) const {
    const auto unknown = std::ranges::find_if(object_, [&](const auto& member) {
      return std::ranges::find(known, std::string_view(member.key())) == known.end();
    });
    throw JsonError(Place(place_, unknown->key()).text(), "an unknown member",
                    fmt::format("one of {}", fmt::join(known, ", ")));
  }

 private:
  template <typename T>
  bool read(const char* name, T& value) {
    const json::value* found = object_.if_contains(name);
    if (found == nullptr) return false;
    ++found_;
    read_value(*found, Place(place_, name), value);
    return true;
  }

  const json::object& object_;
  const Place& place_;
  size_t found_ = 0;
};

template <typename T>
void read_value(const json::value& from, const Place& place, std::vector<T>& to) {
  const json::array* array = from.if_array();
  if (array == nullptr) throw JsonError(place.text(), kind_of(from), "an array");
  to.clear();
  to.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    T item{};
    read_value((*array)[i], Place(place, i), item);
    to.push_back(std::move(item));
  }
}

template <typename T>
requires std::is_class_v<T>
void read_value(const json::value& from, const Place& place, T& to) {
  const json::object* object = from.if_object();
  if (object == nullptr) throw JsonError(place.text(), kind_of(from), "an object");
  Reader reader(*object, place);
  visit_members(reader, to);
  // A problem document may carry extension members (RFC 9457, section 3.2).
  if (std::is_same_v<T, Problem> || reader.has_seen_all()) return;
  Names names;
  visit_members(names, to);
  reader.refuse_unknown(names.all);
}

}  // namespace

JsonError::JsonError(std::string path, std::string found, std::string accepted)
    : Error(fmt::format("JSON: {}{}found {}, expected {}", path, path.empty() ? "" : ": ", found,
                        accepted)),
      path_(std::move(path)),
      accepted_(std::move(accepted)) {}

template <typename Message>
std::string to_json(const Message& message) {
  return json::serialize(write_value(message));
}

template <typename Message>
Message from_json(std::string_view text) {
  Message message;
  // The values lie together, in a first block of twice the text's size, and are let go of at once;
  // blocks grow, so those of a long text are made singly.
  constexpr size_t kAtOnceMax = size_t{256} << 10;
  if (text.size() > kAtOnceMax) {
    read_value(parse_json_exactly(text), Place(), message);
  } else {
    json::monotonic_resource memory(2 * text.size() + 1);
    read_value(parse_json_exactly(text, &memory), Place(), message);
  }
  return message;
}

#define GNOMON_MESSAGE(Message)                          \
  template std::string to_json<Message>(const Message&); \
  template Message from_json<Message>(std::string_view);
GNOMON_EACH_MESSAGE(GNOMON_MESSAGE)
#undef GNOMON_MESSAGE

}  // namespace gnomon
