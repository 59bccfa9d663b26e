// The files that a configuration names: what was found in them, who else may touch them, and what
// is there in place of a file.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <map>
#include <regex>

#include "base/errors.h"
#include "base/files.h"
#include "controller/auth/tokens.h"
#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using test::run_gnomond;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// What takes the place of a file that the configuration names, or of itself: none of it may keep
// the daemon waiting, fill its memory or end it.
class NamedFilesTest : public ::testing::Test {
 protected:
  void replace(const std::string& name, const std::string& kind) {
    const std::filesystem::path path = folder / name;
    std::filesystem::remove(path);
    if (kind == "pipe") ::mkfifo(path.c_str(), 0600);
    if (kind == "device") std::filesystem::create_symlink("/dev/zero", path);
    if (kind == "folder") std::filesystem::create_directory(path);
    if (kind == "long file") std::ofstream(path).seekp(8 << 20).put('x');
  }
  void make_all() {
    for (const auto& [name, text] : files) {
      std::filesystem::remove(folder / name);
      write_file_atomically(folder / name, text);
    }
    test::Authority authority("an authority");
    for (const char* name : {"server.pem", "server.key", "ca.pem"}) {
      std::filesystem::remove(folder / name);
    }
    authority.write(folder / "ca.pem");
    authority.issue(folder.path(), "server");
    for (const std::string& name : names) ::chmod((folder / name).c_str(), 0600);
  }
  static bool logs(const DaemonProcess& daemon, const std::string& expression) {
    return test::eventually([&] { return std::regex_search(daemon.log(), std::regex(expression)); },
                            std::chrono::seconds(20));
  }
  std::string config() const { return (folder / "gnomond.toml").string(); }

  TemporaryDirectory folder;
  const std::map<std::string, std::string> files = {
      {"gnomond.toml",
       "policy = \"policy.toml\"\n[auth]\ntokens = \"tokens.toml\"\n[tls]\n"
       "certificate = \"server.pem\"\nkey = \"server.key\"\nclient_ca = \"ca.pem\"\n"
       "[[notify]]\nname = \"a\"\nurl = \"https://h/\"\nsecret_file = \"hmac\"\n"
       "authorization_file = \"bearer\"\nca_file = \"ca.pem\"\n"},
      {"policy.toml", ""},
      {"tokens.toml", "# none\n"},
      {"hmac", "key"},
      {"bearer", "Bearer abc"}};
  const std::vector<std::string> names = {"gnomond.toml", "policy.toml", "tokens.toml",
                                          "server.pem",   "server.key",  "ca.pem",
                                          "hmac",         "bearer"};
  const std::vector<std::string> kinds = {"pipe", "device", "folder", "long file"};
};

TEST_F(NamedFilesTest, CheckConfigSaysWhatIsThereInstead) {
  for (const std::string& name : names) {
    for (const std::string& kind : kinds) {
      make_all();
      replace(name, kind);
      const EndedProcess refused = run_gnomond({"check-config", config()});
      EXPECT_EQ(refused.status, 2) << name << " " << kind;
      EXPECT_THAT(refused.output,
                  AllOf(HasSubstr(name),
                        HasSubstr(kind == "long file" ? "it has more than" : "it is a " + kind)));
    }
  }
}

TEST_F(NamedFilesTest, AReloadLeavesTheLastGoodConfiguration) {
  make_all();
  DaemonProcess daemon({"--config", config()});
  daemon.start();
  for (const std::string& name : names) {
    for (const std::string& kind : kinds) {
      replace(name, kind);
      const std::string line =
          fmt::format("configuration was not read again, the last good one stays: [^\n]*{}[^\n]*{}",
                      name, kind == "long file" ? "more than" : "it is a " + kind);
      daemon.signal(SIGHUP);
      EXPECT_TRUE(logs(daemon, line)) << line << "\n" << daemon.log();
      std::filesystem::remove(folder / name);
      make_all();
    }
  }
  daemon.signal(SIGHUP);
  EXPECT_TRUE(logs(daemon, "the configuration was read again"));
  EXPECT_EQ(daemon.stop(), 0);
}

TEST_F(NamedFilesTest, CheckConfigTellsWhatItFound) {
  make_all();
  edit_tokens(folder / "tokens.toml", [](std::vector<Token>& tokens) {
    tokens.push_back({"a", Role::kReader, std::string(64, 'a'), 1, 0});
    tokens.push_back({"b", Role::kReader, std::string(64, 'b'), 1, 2});
    tokens.push_back({"c", Role::kAdmin, std::string(64, 'c'), 1, 0});
  });
  const EndedProcess good = run_gnomond({"check-config", config()});
  EXPECT_EQ(good.status, 0);
  EXPECT_THAT(good.output,
              AllOf(ContainsRegex("policy [^\n]*policy.toml: mode enforce\n"),
                    ContainsRegex("tokens.toml: 3 tokens .2 reader, 1 admin., 1 of them over\n"),
                    ContainsRegex("server.pem: valid until 20[^\n]*Z, for [01] more days\n"),
                    ContainsRegex("server.key: the certificate's\n"),
                    ContainsRegex("ca.pem: authorities of clients, who must have"),
                    ContainsRegex("secret_file of the receiver a [^\n]*hmac: a key\n"),
                    HasSubstr(config() + ": good\n"), Not(HasSubstr("warning"))));
}

TEST_F(NamedFilesTest, TokensThatTheDaemonWouldNotReadAreNotWritten) {
  make_all();
  const auto add_many = [](std::vector<Token>& tokens) {
    for (int i = 0; i < 6000; ++i) {
      tokens.push_back({std::string(60, 'n') + std::to_string(i), Role::kReader,
                        fmt::format("{:064x}", i), 1, 0});
    }
  };
  EXPECT_THROW(edit_tokens(folder / "tokens.toml", add_many), Error);
  EXPECT_EQ(read_tokens(folder / "tokens.toml").size(), 0u);
}

TEST_F(NamedFilesTest, WhatEverybodyMayTouchIsWarnedOf) {
  make_all();
  ::chmod((folder / "tokens.toml").c_str(), 0666);
  ::chmod((folder / "server.key").c_str(), 0644);
  ::chmod((folder / "hmac").c_str(), 0604);
  const std::string tokens = "auth.tokens [^\n]*tokens.toml: everybody on this machine may write";
  const std::string key = "tls.key [^\n]*server.key: everybody on this machine may read";
  const std::string secret = "secret_file of the receiver a [^\n]*hmac: everybody[^\n]*may read";
  const EndedProcess good = run_gnomond({"check-config", config()});
  EXPECT_EQ(good.status, 0);
  EXPECT_THAT(good.output, AllOf(ContainsRegex("warning: " + tokens), ContainsRegex(key),
                                 ContainsRegex(secret)));
  DaemonProcess daemon({"--config", config()});
  daemon.start();
  EXPECT_THAT(daemon.log(), AllOf(ContainsRegex("warning. " + tokens), ContainsRegex(key)));
  EXPECT_EQ(daemon.stop(), 0);
}

}  // namespace
}  // namespace gnomon
