// What errors say of values that may be secrets.
#include "base/redaction.h"

#include <gmock/gmock.h>

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RedactionTest, OfAUrlItsSchemeAndHostAreShown) {
  EXPECT_EQ(url_in_short("https://hooks.example"), "\"https://hooks.example\"");
  EXPECT_EQ(url_in_short("https://hooks.example/T0/SECRET"), "\"https://hooks.example/...\"");
  EXPECT_EQ(url_in_short("\"http://hooks.example:80/?key=SECRET\""),
            "\"http://hooks.example/...\"");
  EXPECT_EQ(url_in_short("https://h\\SECRET"), "\"https://h/...\"");
  EXPECT_EQ(url_in_short("https://me:SECRET@hooks.example/"), kNotShown);
  EXPECT_EQ(url_in_short("https://me:SEC/RET@hooks.example/"), kNotShown);
  EXPECT_EQ(url_in_short("hooks.example/SECRET"), kNotShown);
  EXPECT_EQ(url_in_short("[ 'https://hooks.example/SECRET' ]"), kNotShown);
}

TEST(RedactionTest, OnlyWhatMayBeSecretIsLeftOutOfAConfigurationsErrors) {
  const auto value = [](const std::string& key, const std::string& text) {
    return without_secrets(ConfigError("f", 3, key, text, "another")).value();
  };
  EXPECT_EQ(value("threads", "\"many\""), "\"many\"");
  EXPECT_EQ(value("notify[0].url", "\"hooks.example/SECRET\""), kNotShown);
  EXPECT_EQ(value("listen", "\"https://h/SECRET\""), "\"https://h/...\"");
  EXPECT_EQ(
      without_secrets(ConfigError("f", 3, "token", "\"SECRET\"", "one of the keys a")).value(),
      kNotShown);
  EXPECT_EQ(value("syntax", "expected '=', saw 'x'"), "expected '=', saw 'x'");
  EXPECT_EQ(value("syntax", "saw '=' in 'SEC'RET' of a value"), "saw '=' in '...' of a value");
  EXPECT_EQ(value("syntax", "'SECRET"), "'...'");
  EXPECT_EQ(value("hmac_file", "[ \"SECRET\" ]"), kNotShown);
  const ConfigError url = without_secrets(
      ConfigError("f", 3, "notify[0].https://h/SECRET", "true", "one of the keys a"));
  EXPECT_THAT(url.what(), Not(HasSubstr("SECRET")));
}

TEST(RedactionTest, EachOfManyErrorsIsRedacted) {
  const ConfigError one("f", 1, "a.url", "\"https://x/SECRET1\"", "a URL");
  const ConfigError two("f", 2, "hook", "\"https://x/SECRET2\"", "one of the keys a, b");
  const ConfigError three("f", 3, "sha256", "\"SECRET3\"", "a hash");
  const ConfigError nested(std::vector{ConfigError(std::vector{one, two}), three});
  ASSERT_EQ(nested.parts().size(), 3u);
  EXPECT_THAT(nested.what(), HasSubstr("SECRET2"));
  const std::string shown = without_secrets(ConfigError(std::vector{one, two})).what();
  EXPECT_THAT(shown, Not(HasSubstr("SECRET")));
  EXPECT_THAT(shown, AllOf(HasSubstr("f:1: a.url"), HasSubstr("\nf:2: hook")));
  EXPECT_THAT(without_text(nested, {"sha256"}).what(), Not(HasSubstr("SECRET")));
}

TEST(RedactionTest, NothingOfASecretFileIsLeftInItsErrors) {
  const ConfigError value =
      without_text(ConfigError("f", 3, "token[0].sha256", "\"SECRET\"", "a hash"), {"sha256"});
  EXPECT_STREQ(value.what(), "f:3: token[0].sha256 = (not shown): not accepted; expected a hash");
  for (const char* key : {"SECRET", "token[0].SECRET", "SECRET.sha256x"}) {
    const ConfigError unknown = without_text(ConfigError("f", 3, key, "SECRET", "x"), {"sha256"});
    EXPECT_THAT(unknown.what(), HasSubstr("f:3: an unknown key"));
    EXPECT_THAT(unknown.what(), Not(HasSubstr("SECRET")));
  }
  EXPECT_THAT(without_text(ConfigError("f", 3, "syntax", "saw SECRET", "TOML 1.0"), {}).what(),
              Not(HasSubstr("SECRET")));
}

}  // namespace
}  // namespace gnomon
