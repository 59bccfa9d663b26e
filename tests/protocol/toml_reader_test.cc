#include "protocol/toml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "base/errors.h"

namespace gnomon {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr const char* kText = R"(title = "x"
[server]
port = 7717
ratio = 0.5
on = true
whole = 3

[[item]]
name = "a"
[[item]]
name = "b"
)";

TEST(TomlTable, ReadsTypedValuesAndFallbacks) {
  TomlTable root = TomlTable::parse(kText, "f.toml");
  TomlTable server = root.table("server");
  EXPECT_EQ(root.text("title", ""), "x");
  EXPECT_EQ(server.integer("port", 1, 1, 65535), 7717);
  EXPECT_EQ(server.integer("other", 5, 1, 10), 5);
  EXPECT_DOUBLE_EQ(server.number("ratio", 0, 0, 1), 0.5);
  EXPECT_DOUBLE_EQ(server.number("whole", 0, 0, 10), 3.0);
  EXPECT_TRUE(server.boolean("on", false));
  EXPECT_EQ(root.tables("item").size(), 2u);
  EXPECT_EQ(root.tables("item")[1].text("name", ""), "b");
  EXPECT_FALSE(root.table("absent").has("x"));
  EXPECT_EQ(root.table("absent").integer("x", 9, 0, 10), 9);
  EXPECT_NO_THROW(root.refuse_unknown_keys());
  EXPECT_NO_THROW(server.refuse_unknown_keys());
}

template <typename Function>
ConfigError error_of(Function function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error;
  }
  ADD_FAILURE() << "no ConfigError";
  return ConfigError("", 0, "", "", "");
}

TEST(TomlTable, AMistakeNamesFileLineKeyValueAndWhatIsAccepted) {
  static constexpr std::array<std::string_view, 2> kWords = {"y", "z"};
  TomlTable root = TomlTable::parse(kText, "f.toml");
  TomlTable server = root.table("server");
  const ConfigError range = error_of([&] { server.integer("port", 1, 1, 100); });
  EXPECT_STREQ(range.what(),
               "f.toml:3: server.port = 7717: not accepted; expected an integer from 1 to 100");
  EXPECT_EQ(error_of([&] { server.integer("ratio", 1, 0, 1); }).line(), 4);
  EXPECT_EQ(error_of([&] { server.number("on", 1, 0, 1); }).value(), "true");
  EXPECT_EQ(error_of([&] { server.text("port", ""); }).accepted(), "a string in quotes");
  EXPECT_EQ(error_of([&] { server.boolean("port", true); }).accepted(), "true or false");
  EXPECT_THAT(error_of([&] { root.choice("title", "y", kWords); }).accepted(),
              HasSubstr("\"y\", \"z\""));
  EXPECT_EQ(error_of([&] { root.table("title"); }).line(), 1);
  EXPECT_EQ(error_of([&] { root.tables("server"); }).line(), 2);
  EXPECT_THAT(error_of([&] { root.tables("item")[1].integer("name", 0, 0, 1); }).what(),
              HasSubstr("f.toml:11: item[1].name = \"b\""));
}

TEST(TomlTable, RefusesNotANumberWhereARangeIsAsked) {
  TomlTable root = TomlTable::parse("x = nan\ny = inf\n", "f");
  EXPECT_EQ(error_of([&] { root.number("x", 0, -1e300, 1e300); }).line(), 1);
  EXPECT_EQ(error_of([&] { root.number("y", 0, -1e300, 1e300); }).line(), 2);
}

TEST(TomlTable, AnUnknownKeyIsRefusedWithTheKnownOnes) {
  TomlTable root = TomlTable::parse("a = 1\nstpes = 2\n", "f.toml");
  root.integer("a", 0, 0, 10);
  root.integer("steps", 0, 0, 10);
  const ConfigError error = error_of([&] { root.refuse_unknown_keys(); });
  EXPECT_EQ(error.line(), 2);
  EXPECT_EQ(error.key(), "stpes");
  EXPECT_THAT(error.accepted(), HasSubstr("a, steps"));
}

TEST(TomlTable, AKeyInTheWrongTableIsToldWhereItBelongs) {
  TomlTable root = TomlTable::parse("steps = 1\nname = 2\nother = 3\n[[item]]\n", "f.toml");
  root.table("window").integer("steps", 0, 0, 10);
  root.tables("item")[0].text("name", "");
  const std::string what = error_of([&] { root.refuse_unknown_keys(); }).what();
  EXPECT_THAT(what, HasSubstr("steps is a key of [window]\n"));
  EXPECT_THAT(what, HasSubstr("name is a key of [[item]]\n"));
  EXPECT_THAT(what, EndsWith("one of the keys window, item"));
}

TEST(TomlTable, ASyntaxErrorNamesItsLine) {
  const ConfigError error = error_of([] { TomlTable::parse("a = 1\nb = = 2\n", "f.toml"); });
  EXPECT_EQ(error.line(), 2);
  EXPECT_EQ(error_of([] { TomlTable::parse("a = 1\na = 2\n", "f.toml"); }).line(), 2);
}

// The daemon parses policies of strangers on small stacks.
TEST(TomlTable, TextNestedTooDeepIsRefusedBeforeItIsParsed) {
  const auto repeated = [](const std::string& part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  for (const std::string& text : {"x = 1\na = " + repeated("[", 255) + repeated("]", 255),
                                  "x = 1\na = " + repeated("{a=", 255) + "1" + repeated("}", 255),
                                  "x = 1\n" + repeated("a.", 100'000) + "a = 1",
                                  "x = 1\n[" + repeated("a.", 100'000) + "a]"}) {
    const ConfigError error = error_of([&] { TomlTable::parse(text, "f.toml"); });
    EXPECT_EQ(error.line(), 2);
    EXPECT_THAT(error.what(), HasSubstr("nesting")) << text.substr(0, 40);
  }
}

TEST(TomlTable, DotsAndBracketsInStringsAndCommentsAreNoNesting) {
  const std::string dots(100, '.');
  const std::string open(100, '[');
  const std::string text = "a = [\"" + dots + open + "\\\"" + dots + "\", '" + open + "']  # " +
                           open + dots + "\nb = \"\"\"\n" + open + "\"x\n\"\"\"\nc = 1.5\n";
  TomlTable table = TomlTable::parse(text, "f.toml");
  EXPECT_EQ(table.text("b", ""), open + "\"x\n");
  EXPECT_DOUBLE_EQ(table.number("c", 0, 0, 2), 1.5);
}

}  // namespace
}  // namespace gnomon
