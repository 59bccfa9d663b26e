// How records become JSON and are read again: templates over what a record describes. Included by
// the sources that instantiate them, protocol/json.cc and controller/decide/json.cc, since
// Boost.JSON is slow to compile.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/describe.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value.hpp>
#include <boost/mp11.hpp>
#include <boost/pfr.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "protocol/json.h"
#include "protocol/json_text.h"
#include "protocol/text.h"

namespace gnomon::record_json {

namespace json = boost::json;

// A value in words, cut short.
std::string kind_of(const json::value& value);
// Bytes that are no UTF-8 (a file name in an error message, say) become '?': peers refuse such
// text.
std::string valid_utf8(const std::string& text);
// "a number from 0 to 1, "NaN"".
std::string accepted_by(const Range& range);

// Records of protocol/records describe themselves. Those that nobody outside sees are listed with
// BOOST_DESCRIBE_STRUCT: all of their members are required, and null says that there is none. Such
// a one may begin with a record.
template <typename R, typename Visitor>
void describe(Visitor&& visitor) {
  if constexpr (!boost::describe::has_describe_members<R>::value) {
    R::describe(visitor);
  } else {
    using Bases = boost::describe::describe_bases<R, boost::describe::mod_public>;
    using Members = boost::describe::describe_members<R, boost::describe::mod_public>;
    if constexpr (boost::mp11::mp_empty<Bases>::value) {
      static_assert(boost::mp11::mp_size<Members>::value == boost::pfr::tuple_size_v<R>,
                    "a member is missing in BOOST_DESCRIBE_STRUCT");
    }
    boost::mp11::mp_for_each<Bases>([&](auto base) { decltype(base)::type::describe(visitor); });
    boost::mp11::mp_for_each<Members>([&](auto member) {
      visitor(member.name, member.pointer, Member{.required = true, .null = true});
    });
  }
}

// Where a value stands in its message. It costs nothing until an error must name it; what it was
// made of must live as long.
class Place {
 public:
  Place() = default;  // the message
  Place(const Place& parent, std::string_view member) : parent_(&parent), member_(member) {}
  Place(const Place& parent, size_t index) : parent_(&parent), index_(index) {}

  // "steps[3].loss"; empty for the message itself.
  std::string text() const;
  bool is_message() const { return parent_ == nullptr; }

 private:
  const Place* parent_ = nullptr;
  std::string_view member_;  // empty: an item of an array
  size_t index_ = 0;
};

// Why a message is not read: JsonError. Out of line, since each record's reader has all of them.
[[noreturn]] void refuse(const Place& place, const json::value& found, const char* accepted);
[[noreturn]] void refuse_number(const Place& place, double value, const Range& range);
[[noreturn]] void refuse_number(const Place& place, int64_t value, const Range& range);
[[noreturn]] void refuse_text(const Place& place, const std::string& text,
                              const std::string& accepted);
[[noreturn]] void refuse_items(const Place& place, size_t items, size_t most);
[[noreturn]] void refuse_missing(const Place& place, const char* member);
[[noreturn]] void refuse_unknown(const Place& place, const json::object& object,
                                 const std::vector<std::string_view>& known);

// For what treats lists apart.
template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;

template <typename T>
json::value write_value(const T& value);

template <typename R>
struct Writer {
  const R& record;
  json::object object = {};

  template <typename Access>
  void operator()(const char* name, Access access, const Member& member) {
    write(name, std::invoke(access, record), member);
  }
  template <typename T>
  void write(const char* name, const T& value, const Member& member) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (value.empty() && !member.required && member.text.least > 0) return;
    }
    object.emplace(name, write_value(value));
  }
  template <typename T>
  void write(const char* name, const std::optional<T>& value, const Member& member) {
    if (value) {
      write(name, *value, member);
    } else if (member.null) {
      object.emplace(name, nullptr);
    }
  }
};

template <typename T>
json::value write_value(const T& value) {
  if constexpr (std::is_same_v<T, double>) {
    if (std::isnan(value)) return json::value("NaN");
    if (std::isinf(value)) return json::value(value > 0 ? "Infinity" : "-Infinity");
    return json::value(value);
  } else if constexpr (std::is_same_v<T, std::string>) {
    return json::value(valid_utf8(value));
  } else if constexpr (kIsWord<T>) {
    return json::value(valid_utf8(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return json::value(value);
  } else if constexpr (kIsVector<T>) {
    json::array array;
    array.reserve(value.size());
    for (const auto& item : value) array.push_back(write_value(item));
    return array;
  } else if constexpr (std::is_same_v<T, Labels>) {
    json::object object;
    for (const auto& [key, text] : value) object.emplace(valid_utf8(key), write_value(text));
    return object;
  } else {
    Writer<T> writer{value};
    describe<T>(writer);
    return std::move(writer.object);
  }
}

// Which rules are asked of what is read, each with those before it. Parts of what another version
// wrote may lack members, which keep their defaults; that and an answer may have members that are
// not known.
enum class Rules { kOtherVersion, kAnswer, kStored, kNumbersAndHashes, kAll };

inline bool accepts(const Range& range, double value) {
  if (std::isnan(value)) return range.nan;
  if (std::isinf(value)) return value > 0 ? range.infinity : range.minus_infinity;
  return value >= range.least && value <= range.most;
}

// Reads values of members that share one Member's rules.
struct Reading {
  const Member& member;
  Rules rules;

  template <typename T>
  void check_number(const Place& place, T value) const {
    if (rules <= Rules::kStored || accepts(member.range, static_cast<double>(value))) return;
    refuse_number(place, value, member.range);
  }
  void check_text(const Place& place, const std::string& text) const;
  template <const auto& list>
  void read(const json::value& from, const Place& place, Word<list>& to) const {
    const json::string* text = from.if_string();
    if (text == nullptr) refuse(place, from, "a string");
    const std::string_view word(text->data(), text->size());
    // Words of strangers that are not listed must not be kept.
    if (rules > Rules::kStored && !Word<list>::lists(word))
      refuse_text(place, std::string(word), one_of_words(list));
    to = Word<list>::on_record(word);
  }
  void check_items(const Place& place, size_t items) const {
    if (rules > Rules::kStored && items > member.items_most)
      refuse_items(place, items, member.items_most);
  }

  void read(const json::value& from, const Place& place, std::string& to) const {
    const json::string* text = from.if_string();
    if (text == nullptr) refuse(place, from, "a string");
    to.assign(text->data(), text->size());
    check_text(place, to);
  }
  void read(const json::value& from, const Place& place, bool& to) const {
    if (!from.is_bool()) refuse(place, from, "true or false");
    to = from.get_bool();
  }
  void read(const json::value& from, const Place& place, int64_t& to) const {
    if (!from.is_int64()) refuse(place, from, "a whole number of 64 bits");
    to = from.get_int64();
    check_number(place, to);
  }
  void read(const json::value& from, const Place& place, int& to) const {
    int64_t wide = 0;
    read(from, place, wide);
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
      refuse(place, from, "a whole number of 32 bits");
    }
    to = static_cast<int>(wide);
  }
  void read(const json::value& from, const Place& place, double& to) const {
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
      refuse(place, from, "a number, \"NaN\", \"Infinity\" or \"-Infinity\"");
    }
    check_number(place, to);
  }
  // Bounds: label_error().
  void read(const json::value& from, const Place& place, Labels& to) const {
    const json::object* object = from.if_object();
    if (object == nullptr) refuse(place, from, "an object");
    static constexpr Member kFree = {.text = rules::kAnyText};
    to.clear();
    for (const auto& label : *object) {
      const std::string key(label.key().data(), label.key().size());
      Reading{kFree, rules}.read(label.value(), Place(place, key), to[key]);
    }
  }
  template <typename T>
  void read(const json::value& from, const Place& place, std::vector<T>& to) const {
    const json::array* array = from.if_array();
    if (array == nullptr) refuse(place, from, "an array");
    check_items(place, array->size());
    to.clear();
    to.reserve(array->size());
    for (size_t i = 0; i < array->size(); ++i) {
      // In place: GCC 12 takes a moved-from local with optionals for uninitialized.
      read((*array)[i], Place(place, i), to.emplace_back());
    }
  }
  template <typename T>
  requires std::is_class_v<T>
  void read(const json::value& from, const Place& place, T& to) const;
};

struct NameList {
  std::vector<std::string_view> names = {};
  template <typename Access>
  void operator()(const char* name, Access&&, const Member&) {
    add(name);
  }
  void add(const char* name);
};

template <typename R>
struct Reader {
  const json::object& object;
  const Place& place;
  const Rules rules;
  R& record;
  size_t found = 0;

  template <typename Access>
  void operator()(const char* name, Access access, const Member& member) {
    const json::value* value = object.if_contains(name);
    if (value != nullptr) {
      ++found;
      read(*value, Place(place, name), member, std::invoke(access, record));
    } else if (member.required && (rules > Rules::kOtherVersion || place.is_message())) {
      refuse_missing(place, name);
    }
  }
  template <typename T>
  void read(const json::value& from, const Place& at, const Member& member, T& to) {
    Reading{member, rules}.read(from, at, to);
  }
  template <typename T>
  void read(const json::value& from, const Place& at, const Member& member, std::optional<T>& to) {
    if (member.null && from.is_null()) return to.reset();
    Reading{member, rules}.read(from, at, to.emplace());
  }
};

template <typename T>
requires std::is_class_v<T>
void Reading::read(const json::value& from, const Place& place, T& to) const {
  const json::object* object = from.if_object();
  if (object == nullptr) refuse(place, from, "an object");
  Reader<T> reader{*object, place, rules, to};
  describe<T>(reader);
  // A problem document may carry extension members (RFC 9457, section 3.2).
  const bool part = rules == Rules::kOtherVersion && !place.is_message();
  if (rules == Rules::kAnswer || part) return;
  if (std::is_same_v<T, Problem> || reader.found == object->size()) return;
  NameList known;
  describe<T>(known);
  refuse_unknown(place, *object, known.names);
}

template <typename Message>
Message read_message(const json::value& value, Rules rules) {
  static constexpr Member kWhole;
  Message message;
  Reading{kWhole, rules}.read(value, Place(), message);
  return message;
}

}  // namespace gnomon::record_json
