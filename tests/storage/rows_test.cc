// The rows that protocol/records describes against the tables of schema.sql.
#include "storage/rows.h"

#include <gmock/gmock.h>

#include <map>
#include <set>

#include "base/errors.h"
#include "tests/storage/ledger_fixture.h"
#include "tests/support/described.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

struct Column {
  std::string type;
  bool null = false;
  bool operator==(const Column&) const = default;
};
void PrintTo(const Column& column, std::ostream* out) {
  *out << column.type << (column.null ? "" : " NOT NULL");
}

template <typename T>
struct ColumnOf {
  static constexpr const char* kType = "TEXT";
  static bool null(const Member&) { return false; }
};
template <>
struct ColumnOf<double> {
  static constexpr const char* kType = "REAL";
  static bool null(const Member& member) { return member.range.nan; }
};
template <typename T>
requires std::is_integral_v<T>
struct ColumnOf<T> {
  static constexpr const char* kType = "INTEGER";
  static bool null(const Member&) { return false; }
};
template <typename T>
struct ColumnOf<std::optional<T>> : ColumnOf<T> {
  static bool null(const Member&) { return true; }
};

// A value that differs from the default and that the rules accept.
void fill(int64_t& value, const Member& member) { value = member.range.least > 1 ? 2 : 1; }
void fill(double& value, const Member&) { value = 0.5; }
void fill(bool& value, const Member&) { value = true; }
void fill(std::string& value, const Member& member) {
  value = *member.json != '\0' ? R"({"a":[1,"b"]})" : "text";
}
template <const auto& list>
void fill(Word<list>& value, const Member&) {
  value = Word<list>::on_record(list.back());
}
void fill(std::vector<std::string>& value, const Member&) { value = {"lm_head", "a\"b"}; }
template <typename T>
void fill(std::optional<T>& value, const Member& member) {
  fill(value.emplace(), member);
}

template <typename R>
R filled() {
  R row;
  R::describe([&](const char*, auto access, const Member& member) {
    fill(std::invoke(access, row), member);
  });
  return row;
}

// By its first column, and the run's row is there before all others.
template <typename R>
class RowsTest : public ::testing::Test {
 protected:
  RowsTest() : folder_(::testing::TempDir() + "gnomon-rows-XXXXXX") {
    if (::mkdtemp(folder_.data()) == nullptr) throw Error("no folder for a ledger");
    LedgerOptions options;
    options.file = folder_ + "/ledger.sqlite";
    ledger_ = std::make_unique<Ledger>(options);
    write([](Connection& connection) {
      if (std::string(R::kRow.table) != "runs") ledger::insert(connection, filled<RunRow>());
      ledger::insert(connection, filled<R>());
    });
  }
  ~RowsTest() override {
    ledger_.reset();
    std::filesystem::remove_all(folder_);
  }
  template <typename Action>
  void write(const Action& action) {
    ledger_->write([&](LedgerTransaction& transaction) { action(transaction.connection()); });
  }
  R read() {
    std::optional<R> row;
    ledger_->read([&](Connection& connection) { row = ledger::find<R, "LIMIT 1">(connection); });
    return row.value();
  }
  // As somebody with the sqlite3 shell does.
  void set(const char* column, const std::string& value) {
    write([&](Connection& connection) {
      connection.database().exec(
          fmt::format("UPDATE {} SET {} = {}", R::kRow.table, column, value));
    });
  }
  void expect_named(const char* column, const std::string& value) {
    try {
      ledger::check_row(read(), "ledger.sqlite");
      ADD_FAILURE() << R::kRow.table << "." << column << " = " << value << " is taken";
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("{}.{}", R::kRow.table, column)));
      EXPECT_THAT(error.what(), HasSubstr(value));
      EXPECT_THAT(error.what(), HasSubstr("ledger.sqlite"));
    }
  }

  std::string folder_;
  std::unique_ptr<Ledger> ledger_;
};

template <typename... Rows>
using Types = ::testing::Types<Rows...>;
using AllTables = Types<RunRow, FaultRow, AttemptRow, StepRow, CheckpointRow, PlanRow, WindowRow,
                        ReplayRow, ResultRow, ReplayStepRow, ScoreRow, LeaseRow, DecisionRow,
                        DirectiveRow, OverrideRow, NoticeRow, DeviceHealthRow, EventRow, OutboxRow,
                        ConditionRow>;  // of the audit log each row is a link of a chain
TYPED_TEST_SUITE(RowsTest, AllTables);

TYPED_TEST(RowsTest, ColumnsAreThoseOfTheSchema) {
  std::map<std::string, Column> described;
  TypeParam::describe([&](const char* name, auto access, const Member& member) {
    using T = std::remove_cvref_t<std::invoke_result_t<decltype(access), TypeParam&>>;
    described[name] = {ColumnOf<T>::kType, ColumnOf<T>::null(member)};
  });
  std::map<std::string, Column> columns;
  this->ledger_->read([&](Connection& connection) {
    const std::string sql = fmt::format("PRAGMA table_info({})", TypeParam::kRow.table);
    Query query = connection.query(sql.c_str());
    while (query.next()) {
      const bool null = query.integer(3) == 0 && query.integer(5) == 0;
      columns[query.text(1)] = {query.text(2), null};
    }
  });
  EXPECT_EQ(described, columns);
}

TYPED_TEST(RowsTest, EveryMemberIsDescribed) { test::expect_all_described<TypeParam>(); }

TYPED_TEST(RowsTest, ARowComesBackAsItWasWritten) {
  EXPECT_EQ(ledger::row_to_json(this->read()), ledger::row_to_json(filled<TypeParam>()));
  EXPECT_NO_THROW(ledger::check_row(this->read(), ""));
}

// What SQLite itself does not refuse is named with table, column, value and what is accepted.
TYPED_TEST(RowsTest, WhatWasEditedByHandIsRefused) {
  TypeParam::describe([&](const char* name, auto access, const Member& member) {
    using T = std::remove_cvref_t<std::invoke_result_t<decltype(access), TypeParam&>>;
    const std::string_view type = ColumnOf<T>::kType;
    if (type != "TEXT") {
      EXPECT_THROW(this->set(name, "'many'"), std::exception) << name;
    }
    if (!ColumnOf<T>::null(member) && std::string(name) != "id") {
      EXPECT_THROW(this->set(name, "NULL"), std::exception) << name;
    }
    const TypeParam before = this->read();
    if (kIsWord<T>) {
      this->set(name, "'no such word'");
      this->expect_named(name, "no such word");
    } else if (type == "INTEGER" && member.range.most < 1e18 && std::string(name) != "run") {
      this->set(name, fmt::format("{}", static_cast<int64_t>(member.range.most) + 7));
      this->expect_named(name, fmt::format("{}", member.range.most + 7));
    } else if (type == "REAL" && !member.range.minus_infinity) {
      this->set(name, "-9e999");
      this->expect_named(name, "-inf");
    } else {
      return;
    }
    this->write([&](Connection& connection) {
      connection.execute(fmt::format("DELETE FROM {}", TypeParam::kRow.table).c_str());
      ledger::insert(connection, before);
    });
  });
}

}  // namespace
}  // namespace gnomon
