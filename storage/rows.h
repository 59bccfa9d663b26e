// SQL for the rows that protocol/records describes: their columns, reading and writing them. What
// is behind the columns ("WHERE run = ? ORDER BY window") is written where it is asked.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "protocol/json.h"
#include "protocol/records.h"
#include "storage/ledger_connection.h"

namespace gnomon::ledger {

// A piece of SQL as a template's argument: statements are kept by their text, which has to stay.
template <size_t N>
struct Sql {
  consteval Sql(const char (&sql)[N]) {  // NOLINT(google-explicit-constructor)
    for (size_t i = 0; i < N; ++i) text[i] = sql[i];
  }
  char text[N] = {};
};

namespace rows {

// "run, window, kind"
template <typename R>
std::string columns() {
  std::string names;
  R::describe([&](const char* name, auto&&, const Member&) {
    names += names.empty() ? name : fmt::format(", {}", name);
  });
  return names;
}

inline void read(const Query& query, int column, int64_t& to) { to = query.integer(column); }
inline void read(const Query& query, int column, double& to) { to = query.real(column); }
inline void read(const Query& query, int column, bool& to) { to = query.integer(column) != 0; }
inline void read(const Query& query, int column, std::string& to) { to = query.text(column); }
inline void read(const Query& query, int column, std::vector<std::string>& to) {
  to = strings_from_json(query.text(column));
}
template <const auto& list>
void read(const Query& query, int column, Word<list>& to) {
  to = Word<list>::on_record(query.text(column));
}
template <typename T>
void read(const Query& query, int column, std::optional<T>& to) {
  if (query.is_null(column)) return to.reset();
  read(query, column, to.emplace());
}

template <typename T>
const T& bound(const T& value) {
  return value;
}
template <const auto& list>
std::string bound(const Word<list>& word) {
  return word;
}
inline std::string bound(const std::vector<std::string>& value) { return strings_to_json(value); }

template <typename R>
void bind(Binder& binder, const R& row) {
  R::describe(
      [&](const char*, auto member, const Member&) { binder(bound(std::invoke(member, row))); });
}

}  // namespace rows

// Throws FormatError where a word or a number is none that its member may have: somebody edited
// `file` by hand.
template <typename R>
void check_row(const R& row, const std::string& file);

// The same of every row of every table, in sentences, of which there are `most` at most:
// "windows, run 3, window 5: kind is "sing"; accepted: one of ...".
std::vector<std::string> bad_values(Connection& connection, size_t most);

// The row as JSON, as the API shows it: NaN and what is not there are null, infinities are strings,
// a bool is 0 or 1.
template <typename R>
std::string row_to_json(const R& row);

// The row that `query` stands on; its columns are those of R in their order, from `column` on.
template <typename R>
R read_row(const Query& query, int column = 0) {
  R row;
  R::describe([&](const char*, auto member, const Member&) {
    rows::read(query, column++, std::invoke(member, row));
  });
  return row;
}

// "SELECT (columns of R) FROM (its table) `rest`", with the parameters of `rest`.
template <typename R, Sql rest, typename... Values>
Query query_rows(Connection& connection, const Values&... values) {
  static const std::string sql =
      fmt::format("SELECT {} FROM {} {}", rows::columns<R>(), R::kRow.table, rest.text);
  return connection.query(sql.c_str(), values...);
}

template <typename R, Sql rest, typename... Values>
std::vector<R> select(Connection& connection, const Values&... values) {
  std::vector<R> found;
  Query query = query_rows<R, rest>(connection, values...);
  while (query.next()) found.push_back(read_row<R>(query));
  return found;
}

// The first of them.
template <typename R, Sql rest, typename... Values>
std::optional<R> find(Connection& connection, const Values&... values) {
  Query query = query_rows<R, rest>(connection, values...);
  return query.next() ? std::optional<R>(read_row<R>(query)) : std::nullopt;
}

// `verb` is INSERT, INSERT OR REPLACE, ...; `rest` may be ON CONFLICT DO NOTHING. Returns how many
// rows were written.
template <typename R, Sql verb = "INSERT", Sql rest = "">
int insert(Connection& connection, const R& row) {
  static const std::string sql = [] {
    int count = 0;
    R::describe([&](const char*, auto&&, const Member&) { ++count; });
    std::string places = "?";
    while (--count > 0) places += ", ?";
    return fmt::format("{} INTO {} ({}) VALUES ({}) {}", verb.text, R::kRow.table,
                       rows::columns<R>(), places, rest.text);
  }();
  return connection.execute_with(sql.c_str(), [&](Binder& binder) { rows::bind(binder, row); });
}

// "UPDATE (table of R) SET (members of Part) `rest`", with the parameters of `rest` behind those
// of the part.
template <typename R, Sql rest, typename Part, typename... Values>
int update(Connection& connection, const Part& part, const Values&... values) {
  static const std::string sql = [] {
    std::string set;
    Part::describe([&](const char* name, auto&&, const Member&) {
      set += fmt::format("{}{} = ?", set.empty() ? "" : ", ", name);
    });
    return fmt::format("UPDATE {} SET {} {}", R::kRow.table, set, rest.text);
  }();
  return connection.execute_with(sql.c_str(), [&](Binder& binder) {
    rows::bind(binder, part);
    (binder(values), ...);
  });
}

}  // namespace gnomon::ledger
