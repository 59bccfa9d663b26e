#include "tests/robustness/endpoint.h"

#include <fmt/format.h>

#include <thread>

namespace gnomon::robustness {
namespace {

constexpr auto kRequestTime = std::chrono::milliseconds(1500);
constexpr auto kPause = std::chrono::milliseconds(3);

}  // namespace

std::optional<HttpResponse> Endpoint::attempt(const std::string& method, const std::string& target,
                                              const std::string& body) {
  const int port = scene_.client_port();
  if (!client_ || port != port_) {
    client_ = std::make_unique<HttpClient>(fmt::format("http://127.0.0.1:{}", port));
    port_ = port;
  }
  try {
    HttpResponse response = client_->request(method, target, body, kRequestTime);
    ++scene_.requests;
    scene_.record.count(fmt::format("answers {}", response.status));
    // 500 is what a commit that fails by a failpoint looks like: nothing was recorded.
    if (may_pass(response.status) || response.status == 500) return std::nullopt;
    return response;
  } catch (const ConnectionError&) {
    scene_.record.count("requests without an answer");
    return std::nullopt;
  }
}

std::optional<Endpoint::Answer> Endpoint::insist(const std::string& method,
                                                 const std::string& target,
                                                 const std::string& body) {
  bool sure = !scene_.lossy;
  while (!scene_.late()) {
    if (std::optional<HttpResponse> response = attempt(method, target, body)) {
      return Answer{std::move(*response), sure};
    }
    sure = false;
    std::this_thread::sleep_for(kPause);
  }
  scene_.record.violation(
      fmt::format("{}: {} {} was not answered to the end", who_, method, target));
  return std::nullopt;
}

}  // namespace gnomon::robustness
