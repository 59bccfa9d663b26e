#include "storage/rows.h"

#include <algorithm>

#include "base/errors.h"
#include "protocol/record_json.h"

namespace gnomon::ledger {
namespace {

struct Value {
  const std::string& file;
  const char* table;
  const char* column;
  const Member& member;

  [[noreturn]] void refuse(const std::string& found, const std::string& accepted) const {
    throw FormatError(file, 0, fmt::format("{}.{} {}", table, column, found), accepted);
  }
  void check(const std::string&) const {}
  template <const auto& list>
  void check(const Word<list>& word) const {
    if (!word.is_known())
      refuse(fmt::format("\"{}\"", word.text().substr(0, 80)), one_of_words(list));
  }
  void check(double number) const {
    if (!record_json::accepts(member.range, number))
      refuse(fmt::format("{}", number), record_json::accepted_by(member.range));
  }
  void check(int64_t number) const { check(static_cast<double>(number)); }
  void check(bool) const {}
  void check(const std::vector<std::string>&) const {}
  template <typename T>
  void check(const std::optional<T>& value) const {
    if (value) check(*value);
  }
};

namespace json = boost::json;

json::value shown(const std::string& text, const Member& member) {
  return *member.json == '\0' ? json::value(record_json::valid_utf8(text))
                              : parse_json_exactly(text);
}
template <const auto& list>
json::value shown(const Word<list>& word, const Member&) {
  return record_json::write_value(word);
}
json::value shown(double number, const Member&) {
  return std::isnan(number) ? json::value() : record_json::write_value(number);
}
json::value shown(int64_t number, const Member&) { return number; }
json::value shown(bool value, const Member&) { return value ? 1 : 0; }
json::value shown(const std::vector<std::string>& texts, const Member&) {
  return record_json::write_value(texts);
}
template <typename T>
json::value shown(const std::optional<T>& value, const Member& member) {
  return value ? shown(*value, member) : json::value();
}

}  // namespace

template <typename R>
std::string row_to_json(const R& row) {
  json::object object;
  R::describe([&](const char* name, auto access, const Member& member) {
    object[name] = shown(std::invoke(access, row), member);
  });
  return json::serialize(object);
}

template <typename R>
void check_row(const R& row, const std::string& file) {
  R::describe([&](const char* name, auto access, const Member& member) {
    Value{file, R::kRow.table, name, member}.check(std::invoke(access, row));
  });
}

#define GNOMON_TABLE(R)                                     \
  template void check_row<R>(const R&, const std::string&); \
  template std::string row_to_json<R>(const R&);
GNOMON_EACH_TABLE(GNOMON_TABLE)
#undef GNOMON_TABLE

}  // namespace gnomon::ledger
