// A real daemon with tokens: one of each role, and whatever a test adds.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"
#include "base/sha256.h"
#include "controller/auth/tokens.h"
#include "protocol/json.h"
#include "tests/controller/fake_clients.h"
#include "tests/controller/raw_connection.h"
#include "tests/support/daemon_process.h"

namespace gnomon {

inline constexpr const char* kSmallPolicy = "[window]\nevery = 5\nsteps = 5\n";

struct Answer {
  int status = 0;
  std::string head;
  std::string body;
};

class SecurityTest : public ::testing::Test {
 protected:
  explicit SecurityTest(const std::string& auth =
                            "requests_per_second = 0\n"
                            "stranger_requests_per_second = 0\n",
                        const std::string& more = {})
      : daemon({"--config", write_config(auth, more), "--log-level", "trace"}, kSmallPolicy) {
    for (const std::string& role : role_names()) secrets[role] = add(role, *role_from_name(role));
    daemon.start();
  }

  std::string write_config(const std::string& auth, const std::string& more) {
    const std::filesystem::path file = folder / "gnomond.toml";
    write_file_atomically(file, "[auth]\ntokens = \"tokens.toml\"\n" + auth + more);
    return file.string();
  }
  std::string add(const std::string& name, Role role, const std::vector<std::string>& runs = {}) {
    const std::string secret = make_secret();
    edit_tokens(folder / "tokens.toml", [&](std::vector<Token>& tokens) {
      tokens.push_back({name, role, sha256_hex(secret), 1, 0, runs});
    });
    return secret;
  }
  void revoke(const std::string& name) {
    edit_tokens(folder / "tokens.toml", [&](std::vector<Token>& tokens) {
      std::erase_if(tokens, [&](const Token& token) { return token.name == name; });
    });
  }

  static std::string request(const std::string& method, const std::string& target,
                             const std::string& secret, const std::string& body = {},
                             const std::string& headers = {}) {
    return fmt::format(
        "{} {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{}{}"
        "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        method, target, secret.empty() ? "" : "Authorization: Bearer " + secret + "\r\n", headers,
        body.size(), body);
  }
  Answer ask(const std::string& method, const std::string& target, const std::string& secret,
             const std::string& body = {}, const std::string& headers = {}) const {
    RawConnection connection(daemon.port());
    connection.send(request(method, target, secret, body, headers));
    const std::string text = connection.read_until("never");
    const size_t end = text.find("\r\n\r\n");
    if (end == std::string::npos) return {};
    return {std::stoi(text.substr(9, 3)), text.substr(0, end), text.substr(end + 4)};
  }

  // A run with an attempt, as run-1.
  void begin() {
    const std::string attempt = to_json(AttemptStart{1, 0, "start", 1, 1.0});
    EXPECT_EQ(ask("POST", "/v1/runs", secrets["trainer"], to_json(test_registration())).status,
              200);
    EXPECT_EQ(ask("POST", "/v1/runs/1/attempts", secrets["trainer"], attempt).status, 200);
  }

  test::TemporaryDirectory folder;
  test::DaemonProcess daemon;
  std::map<std::string, std::string> secrets;  // by role, which is the token's name too
};

}  // namespace gnomon
