#include "protocol/text.h"

#include <gmock/gmock.h>

#include "protocol/json.h"

namespace gnomon {
namespace {

std::string path_refused(const RunRegistration& run) {
  try {
    from_request<RunRegistration>(to_json(run));
    return {};
  } catch (const JsonError& error) {
    return error.path();
  }
}

TEST(TextTest, ALineHasNoControlCharactersAndNoneThatTurnTextAround) {
  for (const char* text : {"", "demo", "a b", "Grüße", "価値", "😀", "\xc2\xa0", "\xe2\x80\xa6",
                           "\xe2\x80\xa7", "\xe2\x80\xaf", "\xe2\x81\xa5", "\xe2\x81\xaa"}) {
    EXPECT_TRUE(is_one_line(text)) << text;
  }
  for (const char* text : {"\n", "a\tb", "\x1b[31m", "\x7f", "\xc2\x80", "\xc2\x9f", "\xe2\x80\xa8",
                           "\xe2\x80\xaa", "\xe2\x80\xae", "a\xe2\x81\xa6", "\xe2\x81\xa9"}) {
    EXPECT_FALSE(is_one_line(text)) << text;
  }
  EXPECT_FALSE(is_one_line(std::string_view("\0", 1)));
}

TEST(TextTest, EachTextIsHeldToTheRuleOfItsMemberWhereverItStands) {
  RunRegistration run;
  run.name = std::string(200, 'x');
  run.sites = {"a", "b"};
  run.base_plan = "one\ntwo";
  run.checkpoint_root = "/" + std::string(4095, 'x');
  run.fingerprint.libraries = std::string(1000, 'x');
  run.faults = {{"sign", "a", 1, 2, "lines\nof text"}};
  EXPECT_EQ(path_refused(run), "");
  auto with = [&](auto&& change) {
    RunRegistration other = run;
    change(other);
    return path_refused(other);
  };
  EXPECT_EQ(with([](auto& r) { r.name += 'x'; }), "name");
  EXPECT_EQ(with([](auto& r) { r.sites[1] = "b\n"; }), "sites[1]");
  EXPECT_EQ(with([](auto& r) { r.checkpoint_root += 'x'; }), "checkpoint_root");
  EXPECT_EQ(with([](auto& r) { r.checkpoint_root = "/a\nb"; }), "checkpoint_root");
  EXPECT_EQ(with([](auto& r) { r.fingerprint.libraries += 'x'; }), "fingerprint.libraries");
  EXPECT_EQ(with([](auto& r) { r.faults[0].kind = "\x1b"; }), "faults[0].kind");
  EXPECT_EQ(with([](auto& r) { r.faults[0].description = std::string(16'385, 'x'); }),
            "faults[0].description");
  EXPECT_EQ(with([](auto& r) { r.base_plan = std::string((4 << 20) + 1, 'x'); }), "base_plan");
}

TEST(TextTest, AShortenedTextFitsAndEndsBetweenLetters) {
  EXPECT_EQ(shortened("why", rules::kSentence), "why");
  EXPECT_EQ(shortened(std::string(16'384, 'x'), rules::kSentence), std::string(16'384, 'x'));
  EXPECT_EQ(shortened(std::string(16'385, 'x'), rules::kSentence),
            std::string(16'380, 'x') + " ...");
  std::string wide = "x";
  while (wide.size() < 300) wide += "é";
  EXPECT_EQ(shortened(wide, rules::kLine), wide.substr(0, 195) + " ...");
}

// What is on record is read as it is.
TEST(TextTest, FromJsonAloneRefusesNone) {
  RunRegistration run;
  run.name = std::string(300, '\n');
  EXPECT_EQ(from_json<RunRegistration>(to_json(run)).name, run.name);
}

}  // namespace
}  // namespace gnomon
