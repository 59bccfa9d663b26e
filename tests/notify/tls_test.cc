// Notifications over TLS to a receiver of a private authority, and through HTTP proxies: the real
// `gnomon notify test`, which sends as gnomond does, and gnomond itself.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <sys/stat.h>

#include <csignal>

#include "base/files.h"
#include "tests/controller/fake_clients.h"
#include "tests/notify/forward_proxy.h"
#include "tests/notify/webhook_receiver.h"
#include "tests/support/certificates.h"
#include "tests/support/daemon_process.h"

namespace gnomon::test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

using Environment = std::vector<std::pair<std::string, std::optional<std::string>>>;

// No proxy of whoever runs the tests.
Environment without_proxies() {
  Environment none;
  for (const char* name : {"http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY",
                           "no_proxy", "NO_PROXY"}) {
    none.emplace_back(name, std::nullopt);
  }
  return none;
}

class NotifyTlsTest : public ::testing::Test {
 protected:
  NotifyTlsTest() {
    write_file_atomically(folder / "word", "Bearer secret-word\n");
    authority.write(folder / "ca.pem");
    stranger.write(folder / "stranger.pem");
  }
  // What a receiver shows that has a certificate of this authority.
  HttpTestTls certificate(const CertificateOptions& options = {}) {
    authority.issue(folder.path(), "hook", options);
    return {(folder / "hook.pem").string(), (folder / "hook.key").string()};
  }
  void configure(const std::string& url, const std::string& ca_file) {
    write_file_atomically(folder / "gnomond.toml",
                          fmt::format("[[notify]]\nname = \"a\"\nurl = \"{}\"\nca_file = \"{}\"\n"
                                      "authorization_file = \"word\"\nretry_first_seconds = 0.02\n"
                                      "retry_longest_seconds = 0.1\n",
                                      url, ca_file));
  }
  // `gnomon notify test` of such a receiver: what it prints.
  std::string send(const std::string& url, const std::string& ca_file,
                   const Environment& proxies = {}, std::vector<std::string> command = {}) {
    configure(url, ca_file);
    command.insert(command.end(), {GNOMON_PROGRAM, "notify", "test", "--config",
                                   (folder / "gnomond.toml").string()});
    ChildOptions options{.environment = without_proxies()};
    options.environment.insert(options.environment.end(), proxies.begin(), proxies.end());
    return run_to_end(command, options).output;
  }
  static std::string at(const WebhookReceiver& hook, const std::string& host) {
    std::string url = hook.url();
    return url.replace(url.find("127.0.0.1"), 9, host);
  }

  TemporaryDirectory folder;
  Authority authority{"an authority"};
  Authority stranger{"another one"};
};

TEST_F(NotifyTlsTest, AReceiverOfAPrivateAuthorityIsBelievedByItsCaFile) {
  WebhookReceiver hook({}, certificate());
  EXPECT_EQ(send(hook.url(), "ca.pem"), "a: taken (status 200)\n");
  EXPECT_EQ(send(at(hook, "localhost"), "ca.pem"), "a: taken (status 200)\n");
  EXPECT_THAT(hook.all(), SizeIs(2));
  EXPECT_EQ(hook.all().at(0).request.headers.at("authorization"), "Bearer secret-word");
}

TEST_F(NotifyTlsTest, ACertificateThatDoesNotFitIsRefusedInWordsAndNothingIsSent) {
  const auto refusal = [&](const CertificateOptions& options, const std::string& ca_file) {
    WebhookReceiver hook({}, certificate(options));
    const std::string said = send(hook.url(), ca_file);
    EXPECT_THAT(hook.all(), IsEmpty());
    EXPECT_THAT(said, StartsWith("a: not taken ("));
    return said;
  };
  EXPECT_THAT(
      refusal({.names = "DNS:other.example"}, "ca.pem"),
      AllOf(HasSubstr("no alternative certificate subject name matches"), HasSubstr("127.0.0.1")));
  EXPECT_THAT(refusal({.begins = -7200, .ends = -3600}, "ca.pem"),
              HasSubstr("certificate has expired"));
  EXPECT_THAT(refusal({.begins = 3600}, "ca.pem"), HasSubstr("certificate is not yet valid"));
  EXPECT_THAT(refusal({}, "stranger.pem"), HasSubstr("unable to get local issuer certificate"));
  EXPECT_THAT(refusal({}, ""), HasSubstr("unable to get local issuer certificate"));
}

// The folder that stands for the system's authorities, in a mount namespace of the test's own.
TEST_F(NotifyTlsTest, WithACaFileTheSystemsAuthoritiesAreNotBelieved) {
  const std::filesystem::path system = folder / "system";
  std::filesystem::create_directory(system);
  authority.write(system / "ca-certificates.crt");
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen((system / "ca-certificates.crt").c_str(), "r"), std::fclose);
  const std::unique_ptr<X509, void (*)(X509*)> own(
      PEM_read_X509(file.get(), nullptr, nullptr, nullptr), X509_free);
  authority.write(system / fmt::format("{:08x}.0", X509_subject_name_hash(own.get())));
  const std::vector<std::string> inside = {
      "/usr/bin/unshare",
      "--mount",
      "--map-root-user",
      "/bin/sh",
      "-c",
      fmt::format("mount --bind {} /etc/ssl/certs && exec \"$@\"", system.string()),
      "sh"};
  std::vector<std::string> probe = inside;
  probe.emplace_back("/bin/true");
  if (const EndedProcess allowed = run_to_end(probe); allowed.status != 0) {
    GTEST_SKIP() << "a mount namespace of its own is not allowed here: " << allowed.output;
  }
  WebhookReceiver hook({}, certificate());
  EXPECT_EQ(send(hook.url(), "", {}, inside), "a: taken (status 200)\n") << "the system's";
  EXPECT_THAT(send(hook.url(), "stranger.pem", {}, inside),
              HasSubstr("unable to get local issuer certificate"));
}

TEST_F(NotifyTlsTest, AFileWithoutAuthoritiesIsRefusedWithTheConfiguration) {
  write_file_atomically(folder / "empty.pem", "nothing\n");
  EXPECT_THAT(send("https://127.0.0.1:1/", "empty.pem"),
              AllOf(HasSubstr("ca_file"), HasSubstr("it has no certificate")));
  EXPECT_THAT(send("https://127.0.0.1:1/", "gone.pem"), HasSubstr("ca_file"));
}

// No host is called hooks.invalid: only the proxy can have led there.
TEST_F(NotifyTlsTest, AProxyOfTheEnvironmentLeadsThere) {
  WebhookReceiver plain;
  ForwardProxy proxy;
  const Environment environment = {{"http_proxy", proxy.url()}, {"https_proxy", proxy.url()}};
  EXPECT_EQ(send(at(plain, "hooks.invalid"), "", environment), "a: taken (status 200)\n");
  ASSERT_THAT(proxy.asked(), SizeIs(1));
  EXPECT_THAT(proxy.asked()[0], StartsWith("POST http://hooks.invalid:"));

  WebhookReceiver hook({}, certificate({.names = "DNS:hooks.invalid"}));
  EXPECT_EQ(send(at(hook, "hooks.invalid"), "ca.pem", environment), "a: taken (status 200)\n");
  ASSERT_THAT(proxy.asked(), SizeIs(2));
  EXPECT_THAT(proxy.asked()[1],
              AllOf(StartsWith("CONNECT hooks.invalid:"), Not(HasSubstr("secret-word")),
                    Not(HasSubstr("Gnomon-Delivery"))))
      << "what is for the receiver is in the tunnel";
  EXPECT_THAT(send(at(hook, "other.invalid"), "ca.pem", environment),
              HasSubstr("no alternative certificate subject name matches"))
      << "the proxy is not believed to be the receiver";
  EXPECT_THAT(hook.all(), SizeIs(1));
}

TEST_F(NotifyTlsTest, NoProxyIsAskedForWhatNoProxyNames) {
  WebhookReceiver hook({}, certificate());
  ForwardProxy proxy;
  EXPECT_EQ(send(hook.url(), "ca.pem",
                 {{"https_proxy", proxy.url()}, {"no_proxy", "127.0.0.1,example.org"}}),
            "a: taken (status 200)\n");
  EXPECT_THAT(proxy.asked(), IsEmpty());
}

TEST_F(NotifyTlsTest, AProxyThatDoesNotWantToIsNoRefusalOfTheReceiver) {
  WebhookReceiver hook({}, certificate());
  ForwardProxy proxy(false);
  EXPECT_THAT(send(hook.url(), "ca.pem", {{"https_proxy", proxy.url()}}),
              AllOf(StartsWith("a: not taken ("), HasSubstr("CONNECT tunnel failed, response 403"),
                    Not(HasSubstr("status 403"))))
      << "which would drop messages";
}

TEST_F(NotifyTlsTest, ADaemonWaitsForAReceiverItCannotBelieveUntilItsCaFileIsMended) {
  WebhookReceiver hook({}, certificate());
  ForwardProxy proxy;
  stranger.write(folder / "believed.pem");
  configure(hook.url(), "believed.pem");
  DaemonProcess daemon({"--config", (folder / "gnomond.toml").string()}, test_policy());
  ChildOptions options{.environment = without_proxies()};
  options.environment.emplace_back("https_proxy", proxy.url());
  daemon.start(options);
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  std::string waiting;
  EXPECT_TRUE(eventually([&] {
    waiting = daemon.client().checked("GET", "/v1/notifications").body;
    return waiting.find("unable to get local issuer certificate") != std::string::npos;
  })) << waiting;
  authority.write(folder / "believed.pem");
  daemon.signal(SIGHUP);
  EXPECT_TRUE(hook.await_taken(1));
  EXPECT_THAT(proxy.asked(), Not(IsEmpty()));
  EXPECT_EQ(daemon.stop(), 0);
}

// libcurl, which would read the file itself, would wait for whoever writes into the pipe, and the
// daemon's end for libcurl.
TEST_F(NotifyTlsTest, ACaFileThatBecomesAPipeHoldsUpNobody) {
  WebhookReceiver hook({}, certificate());
  authority.write(folder / "believed.pem");
  configure(hook.url(), "believed.pem");
  DaemonProcess daemon({"--config", (folder / "gnomond.toml").string()}, test_policy());
  daemon.start({.environment = without_proxies()});
  std::filesystem::remove(folder / "believed.pem");
  ASSERT_EQ(::mkfifo((folder / "believed.pem").c_str(), 0600), 0);
  FakeTrainer trainer(daemon.url());
  trainer.begin();
  std::string waiting;
  EXPECT_TRUE(eventually(
      [&] {
        waiting = daemon.client().checked("GET", "/v1/notifications").body;
        return waiting.find("believed.pem: it is a pipe") != std::string::npos;
      },
      std::chrono::seconds(20)))
      << waiting;
  authority.write(folder / "pem");
  std::filesystem::rename(folder / "pem", folder / "believed.pem");
  EXPECT_TRUE(hook.await_taken(1));
  EXPECT_EQ(daemon.stop(), 0);
}

}  // namespace
}  // namespace gnomon::test
