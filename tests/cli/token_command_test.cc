// `gnomon token`: what stands in the file, what is printed, and that the secret is only in one of
// them.
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "base/files.h"
#include "base/sha256.h"
#include "controller/auth/tokens.h"
#include "tests/cli/program.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {
namespace {

using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TokenCommandTest : public ::testing::Test {
 protected:
  std::string file() const { return (folder_ / "tokens.toml").string(); }
  // The secret that stands alone on a line of what was printed.
  static std::string secret_in(const std::string& output) {
    const size_t at = output.find("\ngnomon_");
    const size_t start = at == std::string::npos ? output.find("gnomon_") : at + 1;
    return output.substr(start, output.find('\n', start) - start);
  }
  test::TemporaryDirectory folder_;
};

TEST_F(TokenCommandTest, ASecretIsPrintedOnceAndItsHashKept) {
  const EndedProcess made = run_gnomon(
      {"token", "create", "grafana", "--role", "reader", "--file", file(), "--expires", "90d"});
  ASSERT_EQ(made.status, 0) << made.output;
  const std::string secret = secret_in(made.output);
  const std::vector<Token> tokens = read_tokens(file());
  ASSERT_EQ(tokens.size(), 1u);
  EXPECT_EQ(tokens[0].name, "grafana");
  EXPECT_EQ(tokens[0].role, Role::kReader);
  EXPECT_EQ(tokens[0].sha256, sha256_hex(secret));
  EXPECT_EQ(tokens[0].expires - tokens[0].created, 90 * 86400);
  EXPECT_THAT(read_file(file()), Not(HasSubstr(secret)));
  const EndedProcess listed = run_gnomon({"token", "list", "--file", file()});
  EXPECT_THAT(listed.output, AllOf(HasSubstr("grafana"), HasSubstr("reader")));
  EXPECT_THAT(listed.output, Not(HasSubstr(tokens[0].sha256)));
}

TEST_F(TokenCommandTest, TheConfigurationOfGnomondNamesTheFile) {
  write_file_atomically(folder_ / "gnomond.toml",
                        "listen = \"127.0.0.1:1\"\n[auth]\ntokens = \"tokens.toml\"\n");
  const std::string config = (folder_ / "gnomond.toml").string();
  EXPECT_EQ(run_gnomon({"token", "create", "a", "--role", "admin", "--config", config}).status, 0);
  EXPECT_EQ(read_tokens(file()).size(), 1u);
  const auto rows =
      boost::json::parse(run_gnomon({"token", "list", "--config", config, "--json"}).output);
  EXPECT_EQ(rows.at(0).at("name").as_string(), "a");
  EXPECT_TRUE(rows.at(0).at("expires").is_null());
  EXPECT_EQ(run_gnomon({"token", "revoke", "a", "--config", config}).status, 0);
  EXPECT_TRUE(read_tokens(file()).empty());
}

TEST_F(TokenCommandTest, ATokenMayBeForSomeRuns) {
  const EndedProcess made = run_gnomon({"token", "create", "team", "--role", "trainer", "--runs",
                                        "team-a-*", "probe", "--file", file()});
  ASSERT_EQ(made.status, 0) << made.errors;
  EXPECT_THAT(made.errors, HasSubstr("for team-a-*, probe"));
  EXPECT_EQ(read_tokens(file()).at(0).runs, (std::vector<std::string>{"team-a-*", "probe"}));
  EXPECT_THAT(run_gnomon({"token", "list", "--file", file()}).output, HasSubstr("team-a-*, probe"));
  const auto rows =
      boost::json::parse(run_gnomon({"token", "list", "--json", "--file", file()}).output);
  EXPECT_EQ(rows.at(0).at("runs").as_array().size(), 2u);
  const EndedProcess refused =
      run_gnomon({"token", "create", "v", "--role", "verifier", "--runs", "x", "--file", file()});
  EXPECT_EQ(refused.status, 2);
  EXPECT_THAT(refused.errors, AllOf(HasSubstr("--runs"), HasSubstr("trainer or operator")));
}

TEST_F(TokenCommandTest, WhatCannotBeDoneSaysWhatCould) {
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "token");
    const EndedProcess ended = run_gnomon(arguments);
    EXPECT_EQ(ended.status, 2) << ended.errors;
    return ended.errors;
  };
  EXPECT_THAT(refused({"create", "a", "--role", "admin"}), HasSubstr("GNOMON_TOKENS"));
  EXPECT_THAT(refused({"create", "a", "--role", "root", "--file", file()}), HasSubstr("operator"));
  EXPECT_THAT(refused({"create", "a b", "--role", "admin", "--file", file()}),
              HasSubstr("1 to 64 letters"));
  EXPECT_THAT(refused({"list", "--config", "/dev/zero"}),
              AllOf(HasSubstr("--config = /dev/zero"), HasSubstr("it is a device")));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"list", "--file", file()}, {"revoke", "a", "--file", file()}}) {
    EXPECT_THAT(refused(arguments), AllOf(HasSubstr("--file = "), HasSubstr("can be read")));
    EXPECT_FALSE(is_file_at(file()));
  }
  write_file_atomically(file(), "");
  EXPECT_THAT(refused({"revoke", "a", "--file", file()}), HasSubstr("being written"));
  write_file_atomically(file(), "# none\n");
  EXPECT_THAT(refused({"revoke", "a", "--file", file()}), HasSubstr("tokens.toml has none"));
  ASSERT_EQ(run_gnomon({"token", "create", "a", "--role", "admin", "--file", file()}).status, 0);
  EXPECT_THAT(refused({"create", "a", "--role", "admin", "--file", file()}),
              HasSubstr("gnomon token revoke a"));
  EXPECT_THAT(refused({"create", "b", "--role", "admin", "--file", file(), "--expires", "never"}),
              HasSubstr("at most 3650d"));
  EXPECT_THAT(refused({"revoke", "b", "--file", file()}), HasSubstr("one of a"));
  EXPECT_EQ(read_tokens(file()).size(), 1u);
  EXPECT_EQ(run_gnomon({"token", "revoke", "a", "--file", file()}).status, 0);
  EXPECT_TRUE(read_tokens(file()).empty());
}

TEST_F(TokenCommandTest, AnOptionIsStrongerThanTheEnvironment) {
  write_file_atomically(folder_ / "gnomond.toml", "[auth]\ntokens = \"tokens.toml\"\n");
  const Variables elsewhere = {{"GNOMON_TOKENS", (folder_ / "other.toml").string()}};
  const std::vector<std::string> create = {"token", "create", "a", "--role", "admin"};
  std::vector<std::string> with_config = create;
  with_config.insert(with_config.end(), {"--config", (folder_ / "gnomond.toml").string()});
  EXPECT_EQ(run_gnomon(with_config, elsewhere).status, 0);
  EXPECT_EQ(read_tokens(file()).size(), 1u);
  EXPECT_EQ(run_gnomon(create, elsewhere).status, 0);
  EXPECT_EQ(read_tokens(folder_ / "other.toml").size(), 1u);
}

// Somebody who writes the file by hand puts the secret where its hash belongs.
TEST_F(TokenCommandTest, ASecretInTheFileIsNotShown) {
  write_file_atomically(file(),
                        "[[token]]\nname = \"a\"\nrole = \"reader\"\nsha256 = \"gnomon_SECRET\"\n");
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"token", "list"},
                                                    {"token", "revoke", "a"},
                                                    {"token", "create", "b", "--role", "reader"}}) {
    std::vector<std::string> all = arguments;
    all.insert(all.end(), {"--file", file()});
    const EndedProcess refused = run_gnomon(all);
    EXPECT_EQ(refused.status, 2);
    EXPECT_THAT(refused.errors, AllOf(HasSubstr("tokens.toml:4"), HasSubstr("token[0].sha256")));
    EXPECT_THAT(refused.output + refused.errors, Not(HasSubstr("SECRET")));
  }
}

}  // namespace
}  // namespace gnomon::cli
