// Who may do what, without a socket: roles, the file of tokens, limits, the authenticator.
#include "controller/auth/authenticator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cmath>
#include <list>
#include <set>
#include <thread>

#include "base/errors.h"
#include "base/files.h"
#include "base/sha256.h"
#include "controller/auth/http_error.h"
#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// The matrix of docs/security.md.
TEST(Roles, MayWhatTheTableSays) {
  const std::vector<std::pair<Access, std::vector<bool>>> table = {
      // reader, trainer, verifier, operator, admin
      {Access::kOpen, {true, true, true, true, true}},
      {Access::kRead, {true, true, true, true, true}},
      {Access::kTrain, {false, true, false, false, true}},
      {Access::kVerify, {false, true, true, false, true}},
      {Access::kOperate, {false, false, false, true, true}},
      {Access::kAdminister, {false, false, false, false, true}},
  };
  for (const auto& [access, expected] : table) {
    for (size_t i = 0; i < role_names().size(); ++i) {
      EXPECT_EQ(may(*role_from_name(role_names()[i]), access), expected[i])
          << role_names()[i] << " " << access_name(access);
    }
  }
  EXPECT_EQ(role_from_name("root"), std::nullopt);
  EXPECT_EQ(roles_with(Access::kVerify), "trainer or verifier or admin");
}

std::string refusal_of(const std::string& toml) {
  try {
    parse_tokens(toml, "tokens.toml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

const std::string kHash = sha256_hex("one");

std::string entry(const std::string& name, const std::string& role, const std::string& hash,
                  const std::string& more = {}) {
  return "[[token]]\nname = \"" + name + "\"\nrole = \"" + role + "\"\nsha256 = \"" + hash +
         "\"\ncreated = \"2026-11-22T18:30:00Z\"\n" + more;
}

TEST(Tokens, WhatIsWrittenIsReadBack) {
  const std::vector<Token> tokens = {
      {"prometheus", Role::kReader, kHash, 1795372200, 0},
      {"ci@host:7", Role::kAdmin, sha256_hex("two"), 1795372200, 1795972200},
      {"team", Role::kTrainer, sha256_hex("three"), 1795372200, 0, {"team-a-*", "a\"b"}}};
  EXPECT_EQ(parse_tokens(tokens_as_toml(tokens), ""), tokens);
  EXPECT_EQ(parse_tokens("", ""), std::vector<Token>());
}

TEST(Tokens, AFileThatIsWrongIsRefusedWithItsLine) {
  EXPECT_THAT(refusal_of(entry("a", "root", kHash)), HasSubstr("tokens.toml:3"));
  EXPECT_THAT(refusal_of(entry("a", "root", kHash)), HasSubstr("reader"));
  EXPECT_THAT(refusal_of(fmt::format("[[token]]\nname = \"a\"\nsha256 = \"{}\"\n", kHash)),
              AllOf(HasSubstr("role"), HasSubstr("reader")))
      << "no role is not any role";
  EXPECT_THAT(refusal_of(entry("a b", "admin", kHash)), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(refusal_of(entry("", "admin", kHash)), HasSubstr("name"));
  EXPECT_THAT(refusal_of(entry(std::string(65, 'a'), "admin", kHash)), HasSubstr("1 to 64"));
  EXPECT_THAT(refusal_of(entry("a", "admin", "00")), HasSubstr("64 lower-case"));
  EXPECT_THAT(refusal_of(entry("a", "admin", kHash, "expires = \"tomorrow\"\n")),
              HasSubstr("expires"));
  EXPECT_THAT(refusal_of(entry("a", "admin", kHash, "secret = \"x\"\n")),
              HasSubstr("an unknown key: not accepted; expected one of the keys name"));
  EXPECT_THAT(refusal_of(entry("a", "admin", kHash) + entry("a", "reader", sha256_hex("x"))),
              HasSubstr("no other token"));
  EXPECT_THAT(refusal_of(entry("a", "admin", kHash) + entry("b", "reader", kHash)),
              HasSubstr("no other token"));
}

TEST(Tokens, SecretsAreLongAndAllDifferent) {
  std::set<std::string> secrets;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = make_secret();
    EXPECT_EQ(secret.size(), std::string("gnomon_").size() + 44);
    EXPECT_EQ(secret.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                       "0123456789-_"),
              std::string::npos);
    EXPECT_TRUE(secrets.insert(secret).second);
  }
}

TEST(Tokens, TimesAreUtc) {
  EXPECT_EQ(utc_text(1795372200), "2026-11-22T18:30:00Z");
  EXPECT_EQ(parse_utc("2026-11-22T18:30:00Z"), 1795372200);
  for (const char* bad : {"", "2026-11-22", "2026-11-22T18:30:00", "2026-11-22T18:30:00Zx"}) {
    EXPECT_TRUE(std::isnan(parse_utc(bad))) << bad;
  }
}

unsigned mode_of(const std::filesystem::path& file) {
  struct stat status {};
  EXPECT_EQ(::stat(file.c_str(), &status), 0);
  return status.st_mode & 0777;
}

TEST(Tokens, AnEditKeepsTheModeAndANewFileIsItsOwnersAlone) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder / "tokens.toml";
  const auto add = [](const std::string& name) {
    return [name](std::vector<Token>& tokens) {
      tokens.push_back({name, Role::kReader, sha256_hex(name), 1, 0});
    };
  };
  edit_tokens(file, add("a"));
  EXPECT_EQ(mode_of(file), 0600u);
  ASSERT_EQ(::chmod(file.c_str(), 0640), 0);
  edit_tokens(file, add("b"));
  EXPECT_EQ(mode_of(file), 0640u);
  EXPECT_EQ(read_tokens(file).size(), 2u);
  // A change that is refused leaves the file, and nothing beside it.
  EXPECT_THROW(edit_tokens(file, [](std::vector<Token>&) { throw Error("no"); }), Error);
  EXPECT_EQ(read_tokens(file).size(), 2u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(Tokens, TwoEditsAtOnceLoseNothing) {
  const TemporaryDirectory folder;
  const std::filesystem::path file = folder / "tokens.toml";
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        const std::string name = std::to_string(t) + "." + std::to_string(i);
        edit_tokens(file, [&](std::vector<Token>& tokens) {
          tokens.push_back({name, Role::kReader, sha256_hex(name), 1, 0});
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(read_tokens(file).size(), 40u);
}

TEST(RateLimiter, TakesABurstAndThenTheRate) {
  RateLimiter limiter;
  const Rate rate{10, 5};
  int taken = 0;
  while (limiter.acquire("a", rate, 100) == 0) ++taken;
  EXPECT_EQ(taken, 5);
  EXPECT_NEAR(limiter.acquire("a", rate, 100), 0.1, 1e-9);
  EXPECT_EQ(limiter.acquire("b", rate, 100), 0) << "another one's bucket is his own";
  for (double now = 100; now < 110; now += 0.01) taken += limiter.acquire("a", rate, now) == 0;
  EXPECT_NEAR(taken, 105, 1);
  EXPECT_EQ(limiter.acquire("a", {0, 1}, 100), 0) << "0 a second is no limit";
}

TEST(RateLimiter, KeysAreBoundedAndTheRestShareABucket) {
  RateLimiter limiter(3);
  const Rate rate{1, 1};
  for (const char* key : {"a", "b", "c", "d"}) EXPECT_EQ(limiter.acquire(key, rate, 0), 0) << key;
  EXPECT_GT(limiter.acquire("e", rate, 0), 0) << "d's bucket is e's";
  EXPECT_LE(limiter.keys(), 4u);
  EXPECT_EQ(limiter.acquire("e", rate, 10), 0) << "full buckets were forgotten";
  EXPECT_LE(limiter.keys(), 4u);
}

class AuthenticatorTest : public ::testing::Test {
 protected:
  std::string add(const std::string& name, Role role, double expires = 0) {
    const std::string secret = "secret of " + name;
    edit_tokens(file(), [&](std::vector<Token>& tokens) {
      tokens.push_back({name, role, sha256_hex(secret), wall, expires});
    });
    return secret;
  }
  void revoke(const std::string& name) {
    edit_tokens(file(), [&](std::vector<Token>& tokens) {
      std::erase_if(tokens, [&](const Token& token) { return token.name == name; });
    });
  }
  std::filesystem::path file() const { return folder / "tokens.toml"; }
  AuthSettings settings() const { return {file().string(), {2, 4}, {1, 3}}; }
  std::unique_ptr<Authenticator> make_authenticator() {
    return std::make_unique<Authenticator>(
        settings(), [this] { return wall; }, [this] { return steady; });
  }
  std::unique_ptr<Authenticator> make_open_authenticator() {
    return std::make_unique<Authenticator>(
        AuthSettings(), [this] { return wall; }, [this] { return steady; });
  }
  static Problem problem_of(const std::function<void()>& action, double* retry_after = nullptr) {
    try {
      action();
    } catch (const HttpError& refusal) {
      if (retry_after) *retry_after = refusal.retry_after();
      return refusal.problem();
    }
    Problem none;
    none.status = 0;
    return none;
  }
  Caller with(const std::string& authorization) {
    kept.push_back(authorization);
    return {"GET", kept.back(), "gnomon.example:7717", "", "192.0.2.7"};
  }

  TemporaryDirectory folder;
  double wall = 1795372200;
  double steady = 50;
  std::list<std::string> kept;
};

TEST_F(AuthenticatorTest, ATokenIsKnownByItsSecretAlone) {
  const std::string secret = add("ada", Role::kOperator);
  auto authenticator = make_authenticator();
  PrincipalPtr ada = authenticator->admit(with("Bearer " + secret));
  ASSERT_TRUE(ada);
  EXPECT_EQ(ada->name(), "ada");
  EXPECT_EQ(ada->role(), Role::kOperator);
  EXPECT_TRUE(authenticator->admit(with("bearer  " + secret + " ")));
  for (const std::string& bad :
       {"Bearer " + secret + "x", "Bearer " + secret.substr(1), std::string("Bearer "),
        "Basic " + secret, secret, "Bearer " + sha256_hex(secret)}) {
    steady += 100;
    EXPECT_EQ(problem_of([&] { authenticator->admit(with(bad)); }).status, 401) << bad;
  }
  EXPECT_EQ(authenticator->admit(with("")), nullptr) << "a stranger";
}

TEST_F(AuthenticatorTest, StrangersAndOtherRolesAreRefusedByTheRoute) {
  const auto reader = std::make_shared<const Principal>(Token{"grafana", Role::kReader});
  EXPECT_NO_THROW(Authenticator::authorise(nullptr, Access::kOpen));
  EXPECT_EQ(problem_of([&] { Authenticator::authorise(nullptr, Access::kRead); }).status, 401);
  EXPECT_NO_THROW(Authenticator::authorise(reader, Access::kRead));
  const Problem problem = problem_of([&] { Authenticator::authorise(reader, Access::kOperate); });
  EXPECT_EQ(problem.status, 403);
  EXPECT_EQ(problem.accepted, "a token of the role operator or admin");
}

TEST(Tokens, RunsAreOfThoseWhoseWorkTheyAre) {
  EXPECT_THAT(refusal_of(entry("a", "trainer", kHash, "runs = [\"x\"]\n")), "accepted");
  EXPECT_THAT(refusal_of(entry("a", "operator", kHash, "runs = [\"x*\", \"?\"]\n")), "accepted");
  for (const char* role : {"reader", "verifier", "admin"}) {
    EXPECT_THAT(refusal_of(entry("a", role, kHash, "runs = [\"x\"]\n")),
                AllOf(HasSubstr("runs"), HasSubstr("trainer or operator")))
        << role;
  }
  EXPECT_THAT(refusal_of(entry("a", "trainer", kHash, "runs = []\n")), HasSubstr("one name"));
  EXPECT_THAT(refusal_of(entry("a", "trainer", kHash, "runs = [\"\"]\n")), HasSubstr("1 to 200"));
}

TEST_F(AuthenticatorTest, ATokenForSomeRunsIsForThoseOfItsNames) {
  const Principal team(Token{"team", Role::kTrainer, kHash, 0, 0, {"team-a-*", "probe"}});
  EXPECT_NO_THROW(Authenticator::authorise_run(team, "team-a-7b"));
  EXPECT_NO_THROW(Authenticator::authorise_run(team, "probe"));
  for (const char* other : {"team-b-7b", "team-a", "probe2", ""}) {
    const Problem problem = problem_of([&] { Authenticator::authorise_run(team, other); });
    EXPECT_EQ(problem.status, 403) << other;
    EXPECT_THAT(problem.detail, HasSubstr("team-a-*, probe"));
  }
  EXPECT_NO_THROW(
      Authenticator::authorise_run(Principal(Token{"all", Role::kTrainer}), "anything"));
}

TEST_F(AuthenticatorTest, ATokenThatIsOverIsNotAccepted) {
  const std::string secret = add("ada", Role::kAdmin, wall + 60);
  auto authenticator = make_authenticator();
  PrincipalPtr ada = authenticator->admit(with("Bearer " + secret));
  EXPECT_TRUE(authenticator->valid(*ada));
  wall += 61;
  EXPECT_FALSE(authenticator->valid(*ada)) << "what waits in its name ends";
  EXPECT_EQ(problem_of([&] { authenticator->admit(with("Bearer " + secret)); }).status, 401);
}

TEST_F(AuthenticatorTest, AChangedTokenFileIsReadAndKnownPrincipalsStay) {
  const std::string ada_secret = add("ada", Role::kAdmin);
  const std::string bob_secret = add("bob", Role::kReader);
  auto authenticator = make_authenticator();
  PrincipalPtr ada = authenticator->admit(with("Bearer " + ada_secret));
  PrincipalPtr bob = authenticator->admit(with("Bearer " + bob_secret));
  revoke("ada");
  const std::string eve_secret = add("eve", Role::kVerifier);
  authenticator->reload_changed_tokens();
  EXPECT_FALSE(authenticator->valid(*ada));
  EXPECT_TRUE(authenticator->valid(*bob));
  EXPECT_EQ(authenticator->admit(with("Bearer " + bob_secret)), bob);
  EXPECT_EQ(authenticator->admit(with("Bearer " + eve_secret))->name(), "eve");
  EXPECT_EQ(problem_of([&] { authenticator->admit(with("Bearer " + ada_secret)); }).status, 401);
  // One that comes back is another one.
  add("ada", Role::kAdmin);
  authenticator->reload_changed_tokens();
  EXPECT_FALSE(authenticator->valid(*ada));
  EXPECT_TRUE(authenticator->admit(with("Bearer " + ada_secret)));
}

TEST_F(AuthenticatorTest, AFileThatCannotBeReadKeepsTheLastGoodTokens) {
  const std::string secret = add("ada", Role::kAdmin);
  auto authenticator = make_authenticator();
  for (const char* bad : {"[[token]]\nname = 7\n", "nonsense", ""}) {
    write_file_atomically(file(), bad);
    authenticator->reload_changed_tokens();
    EXPECT_TRUE(authenticator->admit(with("Bearer " + secret)));
    EXPECT_THROW(authenticator->configure(settings()), ConfigError);
    EXPECT_TRUE(authenticator->admit(with("Bearer " + secret)));
    steady += 100;
  }
  std::filesystem::remove(file());
  authenticator->reload_changed_tokens();
  EXPECT_TRUE(authenticator->admit(with("Bearer " + secret)));
  EXPECT_THROW(make_authenticator(), ConfigError) << "but no daemon starts with it";
}

// No descriptor was free, say: the file is as it was written, and is read when that is over.
TEST_F(AuthenticatorTest, AnUnreadableTokenFileIsReadAgainLater) {
  const std::string secret = add("ada", Role::kAdmin);
  add("bob", Role::kReader);
  auto authenticator = make_authenticator();
  PrincipalPtr ada = authenticator->admit(with("Bearer " + secret));
  EXPECT_TRUE(authenticator->current());
  revoke("ada");
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none = usual;
  none.rlim_cur = 0;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  authenticator->reload_changed_tokens();
  authenticator->reload_changed_tokens();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_FALSE(authenticator->current());
  EXPECT_TRUE(authenticator->valid(*ada));
  EXPECT_EQ(authenticator->revocations(), 0u);
  authenticator->reload_changed_tokens();
  EXPECT_TRUE(authenticator->current());
  EXPECT_FALSE(authenticator->valid(*ada));
  EXPECT_EQ(authenticator->revocations(), 1u);
}

TEST_F(AuthenticatorTest, AProbeWithAnUnknownTokenIsAStrangersWithARateOfItsOwn) {
  add("ada", Role::kAdmin);
  auto authenticator = make_authenticator();
  Caller probe = with("Bearer nonsense");
  probe.probe = Caller::Probe::kReady;
  EXPECT_EQ(authenticator->admit(probe), nullptr);
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    refused += problem_of([&] { authenticator->admit(with("")); }).status == 429 ? 1 : 0;
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(authenticator->admit(probe), nullptr) << "others at this address have used theirs up";
  EXPECT_EQ(problem_of([&] {
              for (int i = 0; i < 200; ++i) authenticator->admit(probe);
            }).status,
            429);
  probe.probe = Caller::Probe::kLive;
  for (int i = 0; i < 200; ++i) EXPECT_EQ(authenticator->admit(probe), nullptr);
}

TEST_F(AuthenticatorTest, EachTokenAndEachStrangersAddressHasItsRate) {
  const std::string ada = add("ada", Role::kAdmin);
  const std::string bob = add("bob", Role::kAdmin);
  auto authenticator = make_authenticator();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(authenticator->admit(with("Bearer " + ada)));
  double retry_after = 0;
  EXPECT_EQ(problem_of([&] { authenticator->admit(with("Bearer " + ada)); }, &retry_after).status,
            429);
  EXPECT_EQ(retry_after, 1);
  EXPECT_TRUE(authenticator->admit(with("Bearer " + bob)));
  // Strangers, with a wrong token or none, by address.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(authenticator->admit(with("")), nullptr);
  EXPECT_EQ(problem_of([&] { authenticator->admit(with("")); }).status, 429);
  EXPECT_EQ(problem_of([&] { authenticator->admit(with("Bearer wrong")); }).status, 429);
  EXPECT_TRUE(authenticator->admit(with("Bearer " + bob))) << "from the same address";
  Caller other = with("");
  other.address = "192.0.2.8";
  EXPECT_EQ(authenticator->admit(other), nullptr);
  steady += 10;
  EXPECT_TRUE(authenticator->admit(with("Bearer " + ada)));
}

TEST_F(AuthenticatorTest, AnIpv6NetworkIsOneStranger) {
  add("ada", Role::kAdmin);
  auto authenticator = make_authenticator();
  Caller caller = with("");
  for (int i = 1; i <= 3; ++i) {
    caller.address = "2001:db8:0:1::" + std::to_string(i);
    EXPECT_EQ(authenticator->admit(caller), nullptr);
  }
  caller.address = "2001:db8:0:1:ffff::9";
  EXPECT_EQ(problem_of([&] { authenticator->admit(caller); }).status, 429);
  caller.address = "2001:db8:0:2::9";
  EXPECT_EQ(authenticator->admit(caller), nullptr);
}

TEST_F(AuthenticatorTest, WithoutTokensEverybodyIsAnonymousButNotEveryHostName) {
  auto authenticator = make_open_authenticator();
  for (const char* host :
       {"", "localhost:7717", "LOCALHOST", "127.0.0.1:7717", "127.9.9.9", "[::1]:7717", "[::1]"}) {
    EXPECT_EQ(authenticator->admit({"POST", "", host, "", "127.0.0.1"})->name(), "anonymous")
        << host;
  }
  for (const char* host : {"evil.example:7717", "localhost.evil.example", "192.0.2.7", "[::2]:1",
                           "127.0.0.1.evil.example"}) {
    EXPECT_EQ(problem_of([&] {
                authenticator->admit({"GET", "", host, "", "127.0.0.1"});
              }).status,
              403)
        << host;
  }
}

TEST_F(AuthenticatorTest, AnotherSitesPageChangesNothing) {
  auto authenticator = make_open_authenticator();
  const auto status = [&](const char* method, const char* origin) {
    return problem_of([&] {
             authenticator->admit({method, "", "localhost:7717", origin, "127.0.0.1"});
           })
        .status;
  };
  EXPECT_EQ(status("POST", "http://localhost:7717"), 0);
  EXPECT_EQ(status("GET", "https://evil.example"), 0) << "a browser hides the answer";
  for (const char* origin : {"https://evil.example", "http://localhost:8080", "null"}) {
    for (const char* method : {"POST", "PUT", "DELETE"}) {
      EXPECT_EQ(status(method, origin), 403) << method << " " << origin;
    }
  }
}

}  // namespace
}  // namespace gnomon
