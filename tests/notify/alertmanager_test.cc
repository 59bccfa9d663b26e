// A real Alertmanager on loopback: what it sends to webhooks of an alert of ours is what we send.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>

#include "base/files.h"
#include "controller/notify/body.h"
#include "protocol/client.h"
#include "protocol/json.h"
#include "tests/controller/fake_clients.h"
#include "tests/notify/webhook_receiver.h"
#include "tests/support/daemon_process.h"

namespace gnomon::test {
namespace {

using ::testing::IsSupersetOf;

constexpr const char* kAlertmanager = "/usr/bin/prometheus-alertmanager";

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

class AlertmanagerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::access(kAlertmanager, X_OK) != 0)
      GTEST_SKIP() << "prometheus-alertmanager is not installed (scripts/setup --tests does)";
    write_file_atomically(
        folder / "alertmanager.yml",
        fmt::format("route:\n  receiver: back\n  group_by: [alertname, run]\n  group_wait: 0s\n"
                    "  group_interval: 1s\n  repeat_interval: 1h\n"
                    "receivers:\n  - name: back\n    webhook_configs:\n      - url: {}\n",
                    back.url()));
    start();
  }
  void start() {
    process = std::make_unique<ChildProcess>(
        std::vector<std::string>{
            kAlertmanager, "--config.file=" + (folder / "alertmanager.yml").string(),
            "--storage.path=" + (folder / "data").string(),
            fmt::format("--web.listen-address=127.0.0.1:{}", port), "--cluster.listen-address="},
        folder / "alertmanager.log", ChildOptions{});
    ASSERT_TRUE(eventually([&] {
      try {
        return HttpClient(url()).request("GET", "/-/ready").status == 200;
      } catch (const Error&) {
        return false;
      }
    }));
  }
  std::string url() const { return fmt::format("http://127.0.0.1:{}", port); }
  // The alert of a webhook's message, as POST /api/v2/alerts takes it.
  static boost::json::object alert_of(const Delivery& delivery) {
    boost::json::object alert;
    for (const char* name : {"labels", "annotations", "startsAt", "endsAt", "generatorURL"}) {
      alert[name] = delivery.alert().at(name);
    }
    return alert;
  }
  static std::set<std::string> members(const boost::json::value& object) {
    std::set<std::string> keys;
    for (const auto& [key, value] : object.as_object()) keys.emplace(key);
    return keys;
  }

  TemporaryDirectory folder;
  WebhookReceiver back;
  int port = free_port();
  std::unique_ptr<ChildProcess> process;
};

// A notice comes to our webhook; its alert goes through the Alertmanager to another one.
TEST_F(AlertmanagerTest, ItsWebhooksAndOursAreTheSame) {
  WebhookReceiver ours;
  write_file_atomically(
      folder / "gnomond.toml",
      fmt::format("external_url = \"https://g.example\"\n"
                  "[[notify]]\nname = \"ours\"\nurl = \"{}\"\nkinds = [\"reports_dropped\"]\n",
                  ours.url()));
  DaemonProcess daemon({"--config", (folder / "gnomond.toml").string()}, test_policy());
  daemon.start();
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  TrainerNotice notice;
  notice.kind = "reports_dropped";
  notice.attempt = 1;
  notice.text = "the spool was full";
  notice.time = 5;
  trainer.client().checked("POST", trainer.path("/notices"), to_json(notice));
  ASSERT_TRUE(ours.await_taken(1));
  const Delivery our = ours.taken().front();
  HttpClient(url()).checked("POST", "/api/v2/alerts", serialize(boost::json::array{alert_of(our)}));
  ASSERT_TRUE(back.await_taken(1));
  const Delivery its = back.taken().front();
  EXPECT_EQ(members(our.body), members(its.body));
  EXPECT_EQ(members(our.alert()), members(its.alert()));
  for (const char* same :
       {"version", "status", "commonLabels", "groupLabels", "groupKey", "truncatedAlerts"}) {
    EXPECT_EQ(our.body.at(same), its.body.at(same)) << same;
  }
  for (const char* same : {"status", "labels", "startsAt", "generatorURL", "fingerprint"}) {
    EXPECT_EQ(our.alert().at(same), its.alert().at(same)) << same;
  }
  for (const auto& [name, value] : our.body.as_object()) {
    EXPECT_EQ(value.kind(), its.body.at(name).kind()) << std::string(name);
  }
  EXPECT_THAT(members(our.alert().at("annotations")),
              IsSupersetOf(members(its.alert().at("annotations"))));
  EXPECT_EQ(daemon.stop(), 0);
}

}  // namespace
}  // namespace gnomon::test
