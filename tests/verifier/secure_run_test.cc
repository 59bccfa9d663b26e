// A run whose trainer, verifier and controller are real processes that speak TLS, each with a
// certificate of its own.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>

#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::ChildProcess;
using test::eventually;
using ::testing::HasSubstr;
using ::testing::Not;

class SecureRun : public test::TrainerFixture {
 protected:
  SecureRun() {
    authority_.write(directory_ / "ca.pem");
    authority_.issue(directory_.path(), "server");
    authority_.issue(directory_.path(), "trainer", {.names = ""});
    authority_.issue(directory_.path(), "verifier", {.names = ""});
    write_file_atomically(directory_ / "token", "a-token-of-the-test\n");
    write_file_atomically(directory_ / "gnomond.toml",
                          "[tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n"
                          "client_ca = \"ca.pem\"\n");
    daemon_.speak_tls({.url = {},
                       .ca_file = file("ca.pem"),
                       .certificate_file = file("verifier.pem"),
                       .key_file = file("verifier.key")});
    daemon_.start();
  }
  std::string file(const std::string& name) const { return (directory_ / name).string(); }
  // Relative to the configuration's folder.
  std::string controller() const {
    return fmt::format(
        "[controller]\nurl = \"{}\"\ntoken_file = \"token\"\nca_file = \"ca.pem\"\n"
        "certificate_file = \"trainer.pem\"\nkey_file = \"trainer.key\"\n",
        daemon_.url());
  }
  bool has_quiet_window() const {
    return std::ranges::any_of(daemon_.rows("windows"), [](const boost::json::value& row) {
      return row.at("state").as_string() == "quiet";
    });
  }

  test::Authority authority_{"the cluster's authority"};
  test::DaemonProcess daemon_{{"--config", file("gnomond.toml")},
                              "[window]\nevery = 10\nsteps = 10\n"};
};

TEST_F(SecureRun, IsReportedAndVerified) {
  const auto trainer = start(config(1'000'000, controller()));
  // The verifier is told by its environment.
  const auto verifier = launch(
      {GNOMON_VERIFIER, "--controller", daemon_.url(), "--certificate-file", file("verifier.pem"),
       "--key-file", file("verifier.key")},
      {.errors_apart = false,
       .environment = {{"GNOMON_TOKEN_FILE", file("token")}, {"GNOMON_CA_FILE", file("ca.pem")}}});
  EXPECT_TRUE(eventually([this] { return has_quiet_window(); }))
      << trainer->output() << verifier->output() << daemon_.log();
  for (ChildProcess* each : {trainer.get(), verifier.get()}) {
    each->signal(SIGTERM);
    EXPECT_EQ(each->wait(), 0) << each->output();
    EXPECT_THAT(each->output(), Not(HasSubstr("a-token-of-the-test")));
  }
  const std::string run = daemon_.client().checked("GET", "/v1/runs/1").body;
  EXPECT_THAT(run, Not(HasSubstr("trainer.key"))) << "no part of what defines the run";
}

TEST_F(SecureRun, WhatCannotBeUsedIsNamedBeforeAnythingStarts) {
  std::filesystem::remove(directory_ / "token");
  const auto trainer = start(config(10, controller()));
  EXPECT_EQ(trainer->wait(), 2);
  EXPECT_THAT(trainer->output(), HasSubstr("controller.token_file = " + file("token")));
  const auto verifier =
      launch({GNOMON_VERIFIER, "--controller", daemon_.url(), "--ca-file", file("absent.pem")});
  EXPECT_EQ(verifier->wait(), 2);
  EXPECT_THAT(verifier->output(), HasSubstr("--ca-file = " + file("absent.pem")));
}

}  // namespace
}  // namespace gnomon
