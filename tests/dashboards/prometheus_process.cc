#include "tests/dashboards/prometheus_process.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/files.h"

namespace gnomon::dashboards {
namespace {

// A port that was free a moment ago.
int free_port() {
  int socket_fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(socket_fd);
  return ntohs(address.sin_port);
}

std::string url_encoded(const std::string& text) {
  std::string out;
  for (unsigned char c : text) out += isalnum(c) ? std::string(1, c) : fmt::format("%{:02X}", c);
  return out;
}

}  // namespace

void PrometheusProcess::start(int daemon_port, const std::string& rules,
                              const std::filesystem::path& tls_ca) {
  const int port = free_port();
  std::string config = fmt::format(
      "global:\n  scrape_interval: 1s\n  evaluation_interval: 1s\nscrape_configs:\n"
      "  - job_name: gnomon\n    static_configs:\n      - targets: ['127.0.0.1:{}']\n",
      daemon_port);
  if (!tls_ca.empty()) {
    config +=
        fmt::format("    scheme: https\n    tls_config:\n      ca_file: {}\n", tls_ca.string());
  }
  if (!rules.empty()) {
    write_file_atomically(folder_ / "rules.yml", rules);
    config += "rule_files:\n  - rules.yml\n";
  }
  write_file_atomically(folder_ / "prometheus.yml", config);
  process_ = std::make_unique<test::ChildProcess>(
      std::vector<std::string>{PROMETHEUS, "--config.file=" + (folder_ / "prometheus.yml").string(),
                               "--storage.tsdb.path=" + (folder_ / "tsdb").string(),
                               fmt::format("--web.listen-address=127.0.0.1:{}", port)},
      folder_ / "prometheus.log");
  client_ = std::make_unique<HttpClient>(fmt::format("http://127.0.0.1:{}", port));
  ASSERT_TRUE(test::eventually([&] {
    try {
      return client_->request("GET", "/-/ready").status == 200;
    } catch (const ConnectionError&) {
      return false;
    }
  })) << process_->output();
}

boost::json::value PrometheusProcess::data(const std::string& path) {
  const HttpResponse answer = client_->request("GET", "/api/v1/" + path);
  EXPECT_EQ(answer.status, 200) << path << "\n" << answer.body;
  return answer.status == 200 ? boost::json::parse(answer.body).at("data") : nullptr;
}

size_t PrometheusProcess::series_of(const std::string& query) {
  const boost::json::value found = data("query?query=" + url_encoded(query));
  return found.is_null() ? 0 : found.at("result").as_array().size();
}

bool PrometheusProcess::fires(const std::string& alert, const std::string& run) {
  return series_of(fmt::format(R"(ALERTS{{alertname="{}", alertstate="firing", run="{}"}})", alert,
                               run)) > 0;
}

}  // namespace gnomon::dashboards
