// One daemon for each test, with the small windows of test_policy().
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>

#include "tests/controller/fake_clients.h"
#include "tests/support/daemon_process.h"

namespace gnomon {

class ApiTest : public ::testing::Test {
 protected:
  explicit ApiTest(std::vector<std::string> arguments = {})
      : daemon(std::move(arguments), test_policy()) {
    daemon.start();
  }

  boost::json::value get(const std::string& path) {
    HttpClient client = daemon.client();
    return boost::json::parse(client.checked("GET", path).body);
  }
  // The status and problem document of a request that must be refused.
  struct Refused {
    int status = 0;
    std::string title;
    std::string detail;
    std::string accepted;
  };
  Refused refused(const std::string& method, const std::string& path,
                  const std::string& body = {}) {
    HttpClient client = daemon.client();
    HttpResponse response = client.request(method, path, body);
    if (response.status < 400) {
      ADD_FAILURE() << method << " " << path << " was answered with " << response.status << ": "
                    << response.body;
      return {};
    }
    Problem problem = from_json<Problem>(response.body);
    EXPECT_EQ(problem.status, response.status);
    return {response.status, problem.title, problem.detail, problem.accepted};
  }
  // The value of a sample of /metrics, by its name with labels as they are written there; -1 when
  // there is none.
  double metric(const std::string& name) {
    HttpClient client = daemon.client();
    std::string text = "\n";
    text += client.checked("GET", "/metrics").body;
    size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  test::DaemonProcess daemon;
};

}  // namespace gnomon
