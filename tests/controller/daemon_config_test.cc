// The daemon's configuration: how a file is read, refused, and read again while the daemon runs.
#include "controller/daemon/daemon_config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <spdlog/details/log_msg.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <csignal>
#include <cstdlib>
#include <sstream>

#include "base/errors.h"
#include "base/files.h"
#include "controller/daemon/log_setup.h"
#include "controller/daemon/named_files.h"
#include "protocol/json.h"
#include "tests/controller/registration.h"
#include "tests/support/daemon_process.h"
#include "tests/support/sanitized.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using test::run_gnomond;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class DaemonConfigTest : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& text) {
    std::filesystem::path file = folder / "gnomond.toml";
    write_file_atomically(file, text);
    return file;
  }
  std::string refusal(const std::string& text) {
    try {
      check_daemon_config(read_daemon_config(write(text)));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  TemporaryDirectory folder;
};

// Files are found beside it.
void expect_equal(const std::vector<SettingRow>& example, const std::vector<SettingRow>& defaults,
                  const std::string& text) {
  ASSERT_EQ(example.size(), defaults.size());
  for (size_t i = 0; i < defaults.size(); ++i) {
    if (!defaults[i].setting.file) {
      EXPECT_EQ(example[i].value, defaults[i].value) << example[i].path();
    }
    EXPECT_THAT(text, HasSubstr(fmt::format("\n{} = ", defaults[i].key)));
  }
}

TEST_F(DaemonConfigTest, TheExampleHasEveryKeyWithItsDefault) {
  const DaemonConfig example = read_daemon_config(GNOMON_EXAMPLE_CONFIG);
  expect_equal(list_settings(example), list_settings(DaemonConfig()),
               read_file(GNOMON_EXAMPLE_CONFIG));
  check_daemon_config(example);
}

// [[notify]] stands in it as a comment: a receiver has no default.
TEST_F(DaemonConfigTest, TheExamplesReceiverHasEveryKeyWithItsDefault) {
  const std::string example = read_file(GNOMON_EXAMPLE_CONFIG);
  std::string text;
  std::istringstream lines(example.substr(example.find("#[[notify]]")));
  for (std::string line; std::getline(lines, line);) text += line.substr(1) + "\n";
  const auto receivers = read_daemon_config(write(text)).notifications.receivers;
  ASSERT_EQ(receivers.size(), 1u);
  notify::Receiver defaults;
  defaults.name = "oncall";
  defaults.url = "https://hooks.example/gnomon";
  expect_equal(list_settings(receivers.front()), list_settings(defaults), text);
}

TEST_F(DaemonConfigTest, ReceiversAndWhereThePageIsAreChecked) {
  EXPECT_THAT(refusal("external_url = \"g.example\"\n"),
              AllOf(HasSubstr("gnomond.toml:1"), HasSubstr("external_url")));
  EXPECT_THAT(refusal("[[notify]]\nname = \"a\"\nurl = \"http://h/\"\nkinds = [\"rescue\"]\n"),
              AllOf(HasSubstr("gnomond.toml:4"), HasSubstr("rescue"), HasSubstr("alarm")));
  const EndedProcess bad = run_gnomond(
      {"check-config",
       write("[[notify]]\nname = \"a\"\nurl = \"http://h/\"\nsecret_file = \"none\"\n").string()});
  EXPECT_EQ(bad.status, 2);
  EXPECT_THAT(bad.output, AllOf(HasSubstr("secret_file"), HasSubstr("can be read")));
}

// A webhook's path, query or user is often a password, and a token stands where its hash belongs.
TEST_F(DaemonConfigTest, NoSecretStandsInARefusal) {
  const std::string head = "[[notify]]\nname = \"a\"\n";
  for (const std::string& text : {
           head + "url = \"https://me:SECRET@hooks.example/\"\n",
           head + "url = \"https://hooks.example/SECRET#x\"\n",
           head + "url = \"hooks.example/SECRET\"\n",
           head + "url = [\"hooks.example/SECRET\"]\n",
           head + "url = https://hooks.example/SECRET\n",
           head + "url = SECRET\n",
           head + "url = \"https://hooks.example/SECRET\n",
           head + "hook = \"https://hooks.example/SECRET\"\n",
           head + "url = \"http://h/\"\nauthorization = \"Bearer SECRET\"\n",
           std::string("notify = [\"https://hooks.example/SECRET\"]\n"),
           std::string("external_url = \"ftp://me:SECRET@g.example\"\n"),
           std::string("listen = \"https://me:SECRET@g.example\"\n"),
           std::string("[auth]\ntoken = \"SECRET\"\n"),
       }) {
    const EndedProcess refused = run_gnomond({"check-config", write(text).string()});
    EXPECT_EQ(refused.status, 2) << text;
    EXPECT_THAT(refused.output, HasSubstr("gnomond.toml:")) << text;
    EXPECT_THAT(refused.output, Not(HasSubstr("SECRET"))) << text;
  }
  EXPECT_THAT(refusal(head + "url = \"https://hooks.example/SECRET#x\"\n"),
              HasSubstr("notify[0].url = \"https://hooks.example/...\""));
  for (const char* tokens :
       {"[[token]]\nname = \"a\"\nrole = \"reader\"\nsha256 = \"SECRET\"\n",
        "[[token]]\nname = \"a SECRET\"\n", "[[token]]\nname = \"a\"\nrole = \"SECRET\"\n",
        "[[token]]\nname = [\"SECRET\"]\n", "[[token]]\nSECRET = 1\n", "SECRET\n",
        "[[token]]\nname = SECRET\n", "SECRET = 1\nSECRET = 2\n", "[SECRET]\n"}) {
    write_file_atomically(folder / "tokens.toml", tokens);
    const EndedProcess refused =
        run_gnomond({"check-config", write("[auth]\ntokens = \"tokens.toml\"\n").string()});
    EXPECT_EQ(refused.status, 2) << tokens;
    EXPECT_THAT(refused.output, HasSubstr("tokens.toml:")) << tokens;
    EXPECT_THAT(refused.output, Not(HasSubstr("SECRET"))) << tokens;
  }
}

TEST_F(DaemonConfigTest, PathsAreRelativeToTheFile) {
  const DaemonConfig config = read_daemon_config(write("ledger = \"state/l.sqlite\"\n"));
  EXPECT_EQ(config.ledger, (folder / "state/l.sqlite").string());
}

TEST_F(DaemonConfigTest, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(refusal("listen = \"127.0.0.1:1\"\nlisten_adress = 1\n"),
              AllOf(HasSubstr("gnomond.toml:2"), HasSubstr("listen_adress")));
  EXPECT_THAT(refusal("[log]\nformat = \"xml\"\n"),
              AllOf(HasSubstr("gnomond.toml:2"), HasSubstr("logfmt")));
  EXPECT_THAT(refusal("[limits]\nconnections = 0\n"), HasSubstr("connections"));
  EXPECT_THAT(refusal("policy = \"none.toml\"\n"), HasSubstr("none.toml"));
  EXPECT_THAT(refusal("listen = \"0.0.0.0:7717\"\n"),
              AllOf(HasSubstr("gnomond.toml"), HasSubstr("listen"), HasSubstr("loopback")));
  EXPECT_THAT(refusal("web_root = \"gnomond.toml\"\n"), HasSubstr("a folder"));
}

TEST_F(DaemonConfigTest, KeysThatWaitForARestartAreFound) {
  DaemonConfig running, wanted;
  wanted.log.level = "debug";
  EXPECT_THAT(keys_for_restart(running, wanted), ElementsAre());
  wanted.listen = "127.0.0.1:1";
  wanted.limits.connections = 5;
  EXPECT_THAT(keys_for_restart(running, wanted), ElementsAre("listen", "limits.connections"));
}

TEST_F(DaemonConfigTest, CheckConfigSaysWhetherAFileIsGood) {
  EXPECT_EQ(run_gnomond({"check-config", GNOMON_EXAMPLE_CONFIG}).status, 0);
  EndedProcess bad = run_gnomond({"check-config", write("threads = \"many\"\n").string()});
  EXPECT_EQ(bad.status, 2);
  EXPECT_THAT(bad.output, AllOf(HasSubstr("gnomond.toml:1"), HasSubstr("many")));
}

std::string formatted(const std::string& format, const std::string& text) {
  spdlog::details::log_msg message("gnomond", spdlog::level::warn, text);
  message.time =
      std::chrono::system_clock::time_point(std::chrono::milliseconds(1'500'000'000'042));
  spdlog::memory_buf_t out;
  make_log_formatter(format)->format(message, out);
  return {out.data(), out.size()};
}

TEST(LogFormatTest, AJsonLineSurvivesAnyText) {
  const std::string line = formatted("json", "say \"no\"\\\n\t\x01 ü");
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const boost::json::object object = boost::json::parse(line).as_object();
  EXPECT_EQ(object.at("msg").as_string(), "say \"no\"\\\n\t\x01 ü");
  EXPECT_EQ(object.at("level").as_string(), "warning");
  EXPECT_EQ(object.at("ts").as_string(), "2017-07-14T02:40:00.042Z");
}

TEST(LogFormatTest, ALogfmtLineIsOneLine) {
  EXPECT_EQ(formatted("logfmt", "a \"b\"\nc"),
            "ts=2017-07-14T02:40:00.042Z level=warning msg=\"a \\\"b\\\"\\nc\"\n");
}

TEST(LogFormatTest, TextThatATerminalObeysIsWrittenOut) {
  for (const char* format : {"json", "logfmt", "text"}) {
    EXPECT_THAT(formatted(format, "\u202e\xc2\x9b"), HasSubstr("\\u202e\\u009b")) << format;
  }
}

TEST(LogFormatTest, ATextLineIsOneLineAndInUtc) {
  EXPECT_EQ(formatted("text", "a\nb \x1b[2J \u202e"),
            "[2017-07-14 02:40:00.042Z] [gnomond] [warning] a\\nb \\u001b[2J \\u202e\n");
}

std::string named_run(const std::string& name) {
  RunRegistration registration = small_registration();
  registration.name = name;
  return to_json(registration);
}

TEST_F(DaemonConfigTest, ALedgerThatCannotBeIsToldInOneSentence) {
  const std::string at = (folder / "gnomond.toml").string() + ": ledger = ";
  const std::string inside = folder.path().string();
  EXPECT_THAT(refusal("ledger = \"\"\n"), AllOf(HasSubstr(at + "\"\""), HasSubstr("no name")));
  for (const char* name : {".", "../"}) {
    EXPECT_THAT(refusal(fmt::format("ledger = \"{}\"\n", name)),
                AllOf(HasSubstr(at), HasSubstr("is a folder")));
  }
  EXPECT_THAT(refusal("ledger = \"absent/l.sqlite\"\n"),
              AllOf(HasSubstr(at + inside + "/absent/l.sqlite"),
                    HasSubstr("there is no folder " + inside + "/absent")));
  std::filesystem::create_symlink("nothing", folder / "link");
  EXPECT_THAT(refusal("ledger = \"link\"\n"),
              HasSubstr("is a link to nothing, which does not exist"));
}

TEST_F(DaemonConfigTest, AFolderForBackupsIsThereAndCanBeWritten) {
  const std::string inside = folder.path().string();
  EXPECT_THAT(refusal("[backup]\nfolder = \"absent\"\n"),
              AllOf(HasSubstr("backup.folder = " + inside + "/absent"),
                    HasSubstr("there is no folder " + inside + "/absent")));
  EXPECT_THAT(refusal("[backup]\nevery_seconds = 60.0\n"),
              HasSubstr("backup.every_seconds is not 0"));
  std::filesystem::create_directory(folder / "mine");
  EXPECT_EQ(refusal("[backup]\nfolder = \"mine\"\n"), "accepted");
  if (::geteuid() != 0) std::filesystem::permissions(folder / "mine", std::filesystem::perms(0500));
  const std::filesystem::path config = write("[backup]\nfolder = \"mine\"\n");
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0777));
  const auto as_nobody = [&] {
    const bool root = ::geteuid() == 0;
    if (root && ::seteuid(65534) != 0) return std::string("nobody cannot be played");
    std::string said = "accepted";
    try {
      const DaemonConfig read = read_daemon_config(config);
      check_daemon_config(read);
      for (const std::string& sentence : doubtful_files(read)) said += sentence;
    } catch (const ConfigError& error) {
      said = std::string("refused: ") + error.what();
    }
    if (root && ::seteuid(0) != 0) std::abort();
    return said;
  };
  // Which keeps no daemon from its runs.
  EXPECT_THAT(as_nobody(), AllOf(::testing::StartsWith("accepted"),
                                 HasSubstr("mine cannot be written: Permission denied"),
                                 HasSubstr("ReadWritePaths=")));
}

TEST_F(DaemonConfigTest, TheCommandLinesLedgerIsNamedAsItsOption) {
  for (const char* command : {"", "."}) {
    const test::EndedProcess result = run_gnomond({"--listen", "127.0.0.1:0", "--ledger", command});
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.output, HasSubstr("--ledger = "));
  }
}

class ReloadTest : public DaemonConfigTest {
 protected:
  // What /metrics says of the last reload, once the daemon has answered a SIGHUP with `log_line`.
  bool reloads(const DaemonProcess& daemon, const std::string& log_line) {
    daemon.signal(SIGHUP);
    return test::eventually([&] { return daemon.log().find(log_line) != std::string::npos; },
                            std::chrono::seconds(20));
  }
  static std::string metrics(const DaemonProcess& daemon) {
    return daemon.client().checked("GET", "/metrics").body;
  }
};

TEST_F(ReloadTest, ABadFileChangesNothingAndAGoodOneIsTaken) {
  const std::filesystem::path policy = folder / "policy.toml";
  write_file_atomically(policy, "mode = \"observe\"\n");
  const std::filesystem::path file = write("policy = \"policy.toml\"\n");
  DaemonProcess daemon({"--config", file.string()});
  daemon.start();
  EXPECT_THAT(metrics(daemon), HasSubstr("gnomon_config_last_reload_successful 1"));

  write_file_atomically(policy, "mode = \"whatever\"\n");
  ASSERT_TRUE(reloads(daemon, "the last good one stays"));
  EXPECT_THAT(daemon.log(), HasSubstr("whatever"));
  EXPECT_THAT(metrics(daemon), HasSubstr("gnomon_config_last_reload_successful 0"));
  HttpClient client = daemon.client();
  client.checked("POST", "/v1/runs", named_run("before"));
  EXPECT_THAT(client.checked("GET", "/v1/runs/1/policy").body, HasSubstr("observe"));

  write_file_atomically(policy, "mode = \"enforce\"\n");
  write("policy = \"policy.toml\"\nthreads = 3\n");
  ASSERT_TRUE(reloads(daemon, "a restart is needed for threads"));
  EXPECT_THAT(metrics(daemon), HasSubstr("gnomon_config_last_reload_successful 1"));
  client.checked("POST", "/v1/runs", named_run("after"));
  EXPECT_THAT(client.checked("GET", "/v1/runs/2/policy").body, HasSubstr("enforce"));
  EXPECT_THAT(client.checked("GET", "/v1/runs/1/policy").body, HasSubstr("observe"));
  // Still not in force, so it is said again.
  write("policy = \"policy.toml\"\nthreads = 3\nseries_keep_seconds = 7.0\n");
  EXPECT_TRUE(reloads(daemon, "a restart is needed for threads, series_keep_seconds"));
  EXPECT_EQ(daemon.stop(), 0);
}

TEST_F(ReloadTest, NoSecretOfABadFileStandsInTheLog) {
  write_file_atomically(folder / "tokens.toml", "# none\n");
  const std::string auth = "[auth]\ntokens = \"tokens.toml\"\n";
  const std::filesystem::path file = write(auth);
  DaemonProcess daemon({"--config", file.string()});
  daemon.start();
  write(auth + "[[notify]]\nname = \"a\"\nurl = \"https://me:SECRET@hooks.example/\"\n");
  ASSERT_TRUE(reloads(daemon, "notify[0].url = (not shown)"));
  write(auth);
  write_file_atomically(folder / "tokens.toml", "[[token]]\nname = \"a\"\nsha256 = \"SECRET\"\n");
  ASSERT_TRUE(test::eventually(
      [&] { return daemon.log().find("tokens.toml:1: token[0].role") != std::string::npos; },
      std::chrono::seconds(20)));
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_THAT(daemon.log(), Not(HasSubstr("SECRET")));
}

TEST_F(ReloadTest, LogLinesCanBeJson) {
  DaemonProcess daemon({"--log-format", "json"});
  daemon.start();
  EXPECT_EQ(daemon.stop(), 0);
  std::istringstream lines(daemon.log());
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    if (test::kSanitized && line.starts_with("==")) continue;  // the sanitizer's own
    EXPECT_EQ(boost::json::parse(line).as_object().size(), 3) << line;
  }
  EXPECT_GE(count, 3);
}

}  // namespace
}  // namespace gnomon
