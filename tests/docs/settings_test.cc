// Every key of every struct of settings: what is read, what is refused and by which words, and that
// what is written is read again.
#include "protocol/settings.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <set>

#include "base/errors.h"
#include "controller/daemon/daemon_config.h"
#include "controller/decide/policy.h"
#include "trainer/config_file.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

template <typename S>
struct Subject {
  static S valid() { return {}; }
};
template <>
struct Subject<notify::Receiver> {
  static notify::Receiver valid() {
    notify::Receiver receiver;
    receiver.name = "a";
    receiver.url = "http://h/";
    return receiver;
  }
};

template <>
struct Subject<FaultTable> {
  static FaultTable valid() {
    FaultTable fault;
    fault.start_step = 1;
    return fault;
  }
};

template <typename S>
class SettingsTest : public ::testing::Test {
 protected:
  using Rows = std::vector<SettingRow>;

  // Rows of what is read over a valid one. Contradictions between keys are not looked at.
  static Rows read(const std::string& text) {
    TomlTable root = TomlTable::parse(text, "file.toml");
    S settings = Subject<S>::valid();
    read_settings(root, settings, false);
    return list_settings(settings);
  }
  static std::string document(const SettingRow& row, const std::string& value) {
    const std::string line = fmt::format("{} = {}\n", row.key, value);
    return row.table.empty() ? line : fmt::format("[{}]\n{}", row.table, line);
  }

  // The value is read, nothing else changes, and all of it can be written and read again.
  static void expect_read(const SettingRow& row, const std::string& value) {
    SCOPED_TRACE(row.path() + " = " + value);
    const Rows before = read("");
    const Rows after = read(document(row, value));
    const Rows again = read(to_toml(after));
    ASSERT_EQ(after.size(), before.size());
    ASSERT_EQ(again.size(), before.size());
    for (size_t i = 0; i < after.size(); ++i) {
      if (after[i].path() != row.path()) {
        EXPECT_EQ(after[i].value, before[i].value) << after[i].path();
      } else if (!row.setting.file) {
        EXPECT_EQ(after[i].value, value);
      }
      EXPECT_EQ(again[i].value, after[i].value) << after[i].path();
    }
  }
  static void expect_refused(const SettingRow& row, const std::string& value,
                             const std::string& accepted) {
    SCOPED_TRACE(row.path() + " = " + value);
    try {
      read(document(row, value));
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_EQ(error.file(), "file.toml");
      EXPECT_EQ(error.line(), row.table.empty() ? 1 : 2);
      EXPECT_EQ(error.key(), row.path());
      EXPECT_FALSE(error.value().empty());
      EXPECT_THAT(error.accepted(), HasSubstr(accepted));
      EXPECT_FALSE(error.accepted().empty());
    }
  }

  static void check_integer(const SettingRow& row) {
    const Range& range = row.setting.range;
    expect_refused(row, "1.5", "an integer");
    expect_refused(row, "\"1\"", "an integer");
    for (const auto& [bound, outside] : {std::pair(range.least, -1), std::pair(range.most, 1)}) {
      if (std::abs(bound) > 9e18) continue;
      const auto whole = static_cast<int64_t>(bound);
      expect_read(row, std::to_string(whole));
      expect_refused(row, std::to_string(whole + outside), std::to_string(whole));
    }
  }
  static void check_number(const SettingRow& row) {
    for (const char* wrong : {"\"1\"", "true", "nan", "inf"}) {
      expect_refused(row, wrong, "a number");
    }
    for (const double bound : {row.setting.range.least, row.setting.range.most}) {
      const bool is_most = bound == row.setting.range.most;
      expect_read(row, settings::toml(bound));
      expect_refused(row, settings::toml(std::nextafter(bound, is_most ? HUGE_VAL : -HUGE_VAL)),
                     fmt::format("{}", bound));
    }
  }
  static void check_text(const SettingRow& row) {
    const bool list = row.type == "list";
    const auto as_value = [list](const std::string& text) {
      return list ? "[" + text + "]" : text;
    };
    expect_refused(row, "3",
                   list                        ? "an array of"
                   : row.setting.words.empty() ? "a string"
                                               : "one of");
    if (list) expect_refused(row, "[3]", "an array of");
    for (const std::string_view word : row.setting.words) {
      expect_read(row, as_value(fmt::format("\"{}\"", word)));
      expect_refused(row, as_value("\"no such word\""), fmt::format("\"{}\"", word));
    }
    if (row.setting.check != nullptr) {
      // One of these is nothing that the key takes.
      const std::string bad = row.setting.check("\x01").empty() ? "{" : "\x01";
      expect_refused(row, as_value(toml_quoted(bad)), row.setting.check(bad));
    } else if (row.setting.words.empty()) {
      expect_read(row, as_value("\"any text\""));
    }
  }
};

using AllSettings =
    ::testing::Types<decide::Policy, DaemonConfig, notify::Receiver, ConfigFile, FaultTable>;
TYPED_TEST_SUITE(SettingsTest, AllSettings);

TYPED_TEST(SettingsTest, EveryKeyIsReadWithinItsBoundsAndRefusedBeyondThem) {
  for (const SettingRow& row : TestFixture::read("")) {
    if (!row.value.empty()) TestFixture::expect_read(row, row.value);
    EXPECT_STRNE(row.setting.help, "") << row.path();
    if (row.type == "integer") {
      TestFixture::check_integer(row);
    } else if (row.type == "number") {
      TestFixture::check_number(row);
    } else if (row.type == "true, false") {
      TestFixture::expect_read(row, "true");
      TestFixture::expect_read(row, "false");
      TestFixture::expect_refused(row, "1", "true or false");
    } else {
      TestFixture::check_text(row);
    }
  }
}

TYPED_TEST(SettingsTest, AnUnknownKeyIsRefusedWithThoseOfItsTable) {
  const std::vector<SettingRow> rows = TestFixture::read("");
  std::set<std::string> tables;
  for (const SettingRow& row : rows) tables.insert(row.table);
  for (const std::string& table : tables) {
    SettingRow unknown;
    unknown.table = table;
    unknown.key = "no_such_key";
    for (const SettingRow& row : rows) {
      if (row.table == table) TestFixture::expect_refused(unknown, "1", row.key);
    }
  }
}

}  // namespace
}  // namespace gnomon
