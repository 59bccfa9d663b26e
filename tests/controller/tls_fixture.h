// A gnomond that speaks TLS, with an authority of the test's own.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/files.h"
#include "tests/controller/fake_clients.h"
#include "tests/controller/raw_connection.h"
#include "tests/controller/tls_connection.h"
#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"

namespace gnomon {

class TlsTest : public ::testing::Test {
 protected:
  explicit TlsTest(const std::string& policy = {}) : daemon(config_arguments(), policy) {
    authority.write(folder / "ca.pem");
    authority.issue(folder.path(), "server");
    access.ca_file = (folder / "ca.pem").string();
    daemon.speak_tls(access);
  }
  // `tls` goes into [tls], `more` behind it.
  void configure(const std::string& tls = {}, const std::string& more = {}) {
    write_file_atomically(
        folder / "gnomond.toml",
        fmt::format("[log]\nlevel = \"debug\"\n[tls]\ncertificate = \"server.pem\"\n"
                    "key = \"server.key\"\nlook_seconds = 0.1\n{}{}",
                    tls, more));
  }
  void start(const std::string& tls = {}, const std::string& more = {}) {
    configure(tls, more);
    daemon.start();
  }
  double metric(const std::string& name) {
    HttpClient client = daemon.client();
    const std::string text = "\n" + client.checked("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  // What a client with these options is told; empty when it is answered.
  static std::string failure(const ClientOptions& options) {
    HttpClient client(options);
    try {
      client.checked("GET", "/livez");
      return {};
    } catch (const ConnectionError& error) {
      return error.what();
    }
  }
  ClientOptions reaching(ClientOptions options, const std::string& host = "127.0.0.1") const {
    options.url = fmt::format("https://{}:{}", host, daemon.port());
    return options;
  }
  ::testing::AssertionResult logged(const std::string& text) {
    if (test::eventually([&] { return daemon.log().find(text) != std::string::npos; },
                         std::chrono::seconds(20))) {
      return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "not in its log: " << text << "\n" << daemon.log();
  }

  test::TemporaryDirectory folder;
  test::Authority authority{"an authority"};
  ClientOptions access;
  test::DaemonProcess daemon;

 private:
  std::vector<std::string> config_arguments() const {
    return {"--config", (folder / "gnomond.toml").string()};
  }
};

}  // namespace gnomon
