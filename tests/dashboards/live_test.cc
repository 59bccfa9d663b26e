// A real Prometheus scrapes a real gnomond while a small run trains and is verified: every query of
// every panel of the dashboard must return at least one series.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include "base/files.h"
#include "protocol/client.h"
#include "tests/dashboards/dashboard.h"
#include "tests/support/daemon_process.h"
#include "tests/support/standin_gpu.h"
#include "tests/trainer/tiny_run.h"

namespace gnomon::dashboards {
namespace {

using test::ChildProcess;
using test::eventually;

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

class LivePanels : public ::testing::Test {
 protected:
  void SetUp() override {
    test::make_tiny_dataset(folder_ / "data");
    daemon_.start();
    start_prometheus();
  }

  std::string file(const std::string& name) { return (folder_ / name).string(); }

  void start_prometheus() {
    int port = free_port();
    write_file_atomically(
        folder_ / "prometheus.yml",
        fmt::format("global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: gnomon\n"
                    "    static_configs:\n      - targets: ['127.0.0.1:{}']\n",
                    daemon_.port()));
    prometheus_ = std::make_unique<ChildProcess>(
        std::vector<std::string>{PROMETHEUS, "--config.file=" + file("prometheus.yml"),
                                 "--storage.tsdb.path=" + file("tsdb"),
                                 fmt::format("--web.listen-address=127.0.0.1:{}", port)},
        folder_ / "prometheus.log");
    client_ = std::make_unique<HttpClient>(fmt::format("http://127.0.0.1:{}", port));
    ASSERT_TRUE(eventually([&] {
      try {
        return client_->request("GET", "/-/ready").status == 200;
      } catch (const ConnectionError&) {
        return false;
      }
    })) << prometheus_->output();
  }

  std::vector<std::string> process(const std::string& kind) {
    if (kind == "verifier")
      return {GNOMON_VERIFIER, "--controller", daemon_.url(), "--threads", "1"};
    std::filesystem::path config = test::write_tiny_config(folder_.path(), folder_ / "data", 2000,
                                                           "[statistics]\nevery = 20\n");
    std::string text = read_file(config);
    text.insert(text.find("[run]\n") + 6, fmt::format("watch_gpu = \"{}\"\n", gpu_.kBusId));
    write_file_atomically(config, text);
    return {GNOMON_TRAINER, "--config", config.string(), "--controller",
            daemon_.url(),  "--dir",    file("run")};
  }

  size_t series_of(const std::string& expr) {
    HttpResponse answer = client_->request("GET", "/api/v1/query?query=" + url_encoded(expr));
    EXPECT_EQ(answer.status, 200) << expr << "\n" << answer.body;
    if (answer.status != 200) return 0;
    return boost::json::parse(answer.body).at("data").at("result").as_array().size();
  }

  test::TemporaryDirectory folder_;
  test::StandinGpu gpu_;
  test::DaemonProcess daemon_{{},
                              "[window]\nevery = 50\nsteps = 10\nopen_max = 4\n"
                              "[detector]\ntolerance_percent = 50.0\n"};
  std::unique_ptr<ChildProcess> prometheus_;
  std::unique_ptr<HttpClient> client_;
};

TEST_F(LivePanels, EveryQueryOfEveryPanelReturnsSeries) {
  ChildProcess verifier(process("verifier"), folder_ / "verifier.log");
  ChildProcess trainer(process("trainer"), folder_ / "trainer.log",
                       {.environment = gpu_.environment()});
  boost::json::object dashboard =
      load_dashboard(std::string(GNOMON_SOURCE) + "/dashboards/grafana/dashboards/run.json");
  std::set<std::string> missing;
  for (const Target& target : targets(dashboard)) {
    // Whether a decision was due is up to the run; the annotation's query must work without one
    // too.
    std::string expr =
        target.expr.ends_with(" > 0") ? target.expr.substr(0, target.expr.size() - 4) : target.expr;
    missing.insert(substitute(
        expr,
        {{"job", "gnomon"}, {"instance", ".+"}, {"run", "tiny/7"}, {"__rate_interval", "10s"}}));
  }
  ASSERT_GT(missing.size(), 20u);
  bool all = eventually(
      [&] {
        std::erase_if(missing, [&](const std::string& expr) { return series_of(expr) > 0; });
        return missing.empty();
      },
      std::chrono::seconds(150));
  EXPECT_TRUE(all) << "no series for: " << ::testing::PrintToString(missing)
                   << "\ntrainer: " << trainer.output() << "\nverifier: " << verifier.output();
}

}  // namespace
}  // namespace gnomon::dashboards
