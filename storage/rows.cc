#include "storage/rows.h"

#include <optional>
#include <set>

#include "base/errors.h"
#include "protocol/record_json.h"

namespace gnomon::ledger {
namespace {

struct BadValue {
  std::string column;
  std::string found;
  std::string accepted;
};

// The first value of a row that its member may not have.
struct Checker {
  std::optional<BadValue> bad = {};

  template <const auto& list>
  void check(const char* column, const Member&, const Word<list>& word) {
    if (word.is_known()) return;
    bad = {column, fmt::format("\"{}\"", word.text().substr(0, 80)), one_of_words(list)};
  }
  void check(const char* column, const Member& member, double number) {
    if (record_json::accepts(member.range, number)) return;
    bad = {column, fmt::format("{}", number), record_json::accepted_by(member.range)};
  }
  void check(const char* column, const Member& member, int64_t number) {
    check(column, member, static_cast<double>(number));
  }
  template <typename T>
  void check(const char* column, const Member& member, const std::optional<T>& value) {
    if (value) check(column, member, *value);
  }
  template <typename T>
  void check(const char*, const Member&, const T&) {}
};

template <typename R>
std::optional<BadValue> first_bad_value(const R& row) {
  Checker checker;
  R::describe([&](const char* name, auto access, const Member& member) {
    if (!checker.bad) checker.check(name, member, std::invoke(access, row));
  });
  return checker.bad;
}

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
  if (const std::optional<BadValue> bad = first_bad_value(row)) {
    throw FormatError(file, 0, fmt::format("{}.{} {}", R::kRow.table, bad->column, bad->found),
                      bad->accepted);
  }
}

namespace {

// Its primary key: "run 3, window 5".
template <typename R>
std::string place_of(Connection& connection, const R& row) {
  std::set<std::string> keys;
  Query columns =
      connection.query("SELECT name FROM pragma_table_info(?) WHERE pk > 0", R::kRow.table);
  while (columns.next()) keys.insert(columns.text(0));
  std::string place;
  R::describe([&](const char* name, auto access, const Member& member) {
    if (!keys.contains(name)) return;
    place += fmt::format("{}{} {}", place.empty() ? "" : ", ", name,
                         json::serialize(shown(std::invoke(access, row), member)));
  });
  return place;
}

template <typename R>
void find_bad_values(Connection& connection, size_t most, std::vector<std::string>& found) {
  Query rows = query_rows<R, "">(connection);
  while (found.size() < most && rows.next()) {
    R row;
    try {
      row = read_row<R>(rows);
    } catch (const Error& error) {  // a list that is no JSON
      found.push_back(fmt::format("{}: {}", R::kRow.table, error.what()));
      continue;
    }
    if (const std::optional<BadValue> bad = first_bad_value(row)) {
      found.push_back(fmt::format("{}, {}: {} is {}; accepted: {}", R::kRow.table,
                                  place_of(connection, row), bad->column, bad->found,
                                  bad->accepted));
    }
  }
}

}  // namespace

std::vector<std::string> bad_values(Connection& connection, size_t most) {
  std::vector<std::string> found;
#define GNOMON_TABLE(R) find_bad_values<R>(connection, most, found);
  GNOMON_EACH_TABLE(GNOMON_TABLE)
#undef GNOMON_TABLE
  return found;
}

#define GNOMON_TABLE(R)                                     \
  template void check_row<R>(const R&, const std::string&); \
  template std::string row_to_json<R>(const R&);
GNOMON_EACH_TABLE(GNOMON_TABLE)
#undef GNOMON_TABLE

}  // namespace gnomon::ledger
