// Who gets through to a gnomond that speaks TLS, and what the others are told.
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include <cstdlib>
#include <fstream>

#include "tests/controller/tls_fixture.h"

namespace gnomon {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TlsAccessTest : public TlsTest {};

TEST_F(TlsAccessTest, RequestsAreAnsweredByAddressAndByName) {
  start();
  EXPECT_EQ(failure(reaching(access)), "");
  EXPECT_EQ(failure(reaching(access, "localhost")), "");
  EXPECT_GT(metric("gnomon_tls_certificate_expiry_timestamp_seconds"),
            static_cast<double>(::time(nullptr)) + 23 * 3600);
  EXPECT_EQ(metric("gnomon_tls_handshake_failures_total"), 0);
  EXPECT_EQ(metric("gnomon_tls_last_reload_successful"), 1);
}

TEST_F(TlsAccessTest, NewClientsSpeakTls13AndOthersTls12) {
  start();
  const TlsConnection now(daemon.port());
  EXPECT_EQ(now.version(), "TLSv1.3");
  EXPECT_EQ(now.protocol(), "http/1.1");
  const TlsConnection before(daemon.port(), TLS1_2_VERSION);
  EXPECT_EQ(before.version(), "TLSv1.2");
  EXPECT_THROW(TlsConnection(daemon.port(), TLS1_1_VERSION), Error);
}

TEST_F(TlsAccessTest, PlainHttpIsToldToComeAgainInTls) {
  start();
  RawConnection plain(daemon.port());
  plain.send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_THAT(plain.read_until("http://."),
              AllOf(HasSubstr("400 Bad Request"), HasSubstr("https://")));
  EXPECT_EQ(metric("gnomon_tls_handshake_failures_total"), 1);
  // A trainer takes a problem document for a refusal of what it reports.
  HttpClient client(fmt::format("http://127.0.0.1:{}", daemon.port()));
  try {
    client.checked("POST", "/v1/runs", "{}");
    FAIL();
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status(), 400);
    EXPECT_EQ(error.title(), "");
  }
}

TEST_F(TlsAccessTest, HttpsToAPlainPortIsToldSo) {
  test::DaemonProcess plain;
  plain.start();
  EXPECT_THAT(failure({.url = fmt::format("https://127.0.0.1:{}", plain.port())}),
              HasSubstr("http:// instead of https://"));
}

TEST_F(TlsAccessTest, AClientNamesWhatItMissesInTheCertificate) {
  start();
  EXPECT_THAT(failure(reaching({})), HasSubstr("name that authority's certificate as ca_file"));
  test::Authority("another").write(folder / "other.pem");
  EXPECT_THAT(failure(reaching({.url = {}, .ca_file = (folder / "other.pem").string()})),
              HasSubstr("not trusted here"));
  EXPECT_TRUE(logged("a TLS handshake failed: tlsv1 alert unknown ca"));
  EXPECT_EQ(metric("gnomon_tls_handshake_failures_total"), 2);
}

TEST_F(TlsAccessTest, TheSystemsAuthoritiesAreThoseOfSslCertFile) {
  start();
  ::setenv("SSL_CERT_FILE", access.ca_file.c_str(), 1);
  const std::string why = failure(reaching({}));
  ::unsetenv("SSL_CERT_FILE");
  EXPECT_EQ(why, "");
}

TEST_F(TlsAccessTest, ACertificateForAnotherHostIsNotTaken) {
  authority.issue(folder.path(), "server", {.names = "DNS:elsewhere.example,IP:127.0.0.9"});
  start();
  for (const std::string host : {"127.0.0.1", "localhost"}) {
    EXPECT_THAT(failure(reaching(access, host)),
                AllOf(HasSubstr("target host name '" + host + "'"),
                      HasSubstr("use a URL with one of the names in its certificate")));
  }
}

TEST_F(TlsAccessTest, AnExpiredCertificateIsServedAndNotTaken) {
  authority.issue(folder.path(), "server", {.ends = 3});
  start();
  std::string why;
  EXPECT_TRUE(test::eventually([&] { return !(why = failure(reaching(access))).empty(); },
                               std::chrono::seconds(20)));
  EXPECT_THAT(why, HasSubstr("expired"));
}

TEST_F(TlsAccessTest, RequiredCertificatesOfClientsAreLookedAt) {
  test::Authority clients("authority of clients"), strangers("strangers");
  clients.write(folder / "clients.pem");
  clients.issue(folder.path(), "client", {.names = ""});
  strangers.issue(folder.path(), "stranger", {.names = ""});
  start("client_ca = \"clients.pem\"\n");
  const auto as = [&](const std::string& name) {
    ClientOptions options = reaching(access);
    options.certificate_file = (folder / (name + ".pem")).string();
    options.key_file = (folder / (name + ".key")).string();
    return failure(options);
  };
  EXPECT_EQ(as("client"), "");
  EXPECT_THAT(failure(reaching(access)), HasSubstr("certificate_file and key_file"));
  EXPECT_THAT(as("stranger"), HasSubstr("does not accept this client's certificate"));
  EXPECT_THAT(as("server"), HasSubstr("does not accept this client's certificate"));
}

TEST_F(TlsAccessTest, OptionalCertificatesOfClientsMayBeLeftOutButNotBeWrong) {
  authority.issue(folder.path(), "client", {.names = ""});
  test::Authority("strangers").issue(folder.path(), "stranger", {.names = ""});
  start("client_ca = \"ca.pem\"\nclient_certificates = \"optional\"\n");
  EXPECT_EQ(failure(reaching(access)), "");
  ClientOptions options = reaching(access);
  options.certificate_file = (folder / "client.pem").string();
  options.key_file = (folder / "client.key").string();
  EXPECT_EQ(failure(options), "");
  options.certificate_file = (folder / "stranger.pem").string();
  options.key_file = (folder / "stranger.key").string();
  EXPECT_THAT(failure(options), HasSubstr("does not accept"));
}

// The end's status and message of a start with such a [tls], and check-config's, which are the
// same.
class TlsStartTest : public TlsTest {
 protected:
  std::string refusal(const std::string& tls) {
    const std::string file = (folder / "gnomond.toml").string();
    write_file_atomically(file, "listen = \"127.0.0.1:0\"\n[tls]\n" + tls);
    const auto checked = test::run_gnomond({"check-config", file});
    EXPECT_EQ(checked.status, 2) << checked.output;
    const auto started = test::run_gnomond({"--config", file});
    EXPECT_EQ(started.status, 2) << started.output;
    EXPECT_EQ(checked.output, started.output);
    EXPECT_FALSE(std::filesystem::exists(folder / "ledger.sqlite"));
    return started.output;
  }
  const std::string both = "certificate = \"server.pem\"\nkey = \"server.key\"\n";
};

TEST_F(TlsStartTest, KeysThatDoNotGoTogetherAreNamedWithTheirLine) {
  EXPECT_THAT(refusal("certificate = \"server.pem\"\n"),
              HasSubstr("gnomond.toml:3: tls.certificate"));
  EXPECT_THAT(refusal("key = \"server.key\"\n"), HasSubstr("gnomond.toml:3: tls.key"));
  EXPECT_THAT(refusal("client_ca = \"ca.pem\"\n"), HasSubstr("tls.client_ca"));
  EXPECT_THAT(refusal(both + "client_certificates = \"optional\"\n"),
              HasSubstr("tls.client_certificates"));
  EXPECT_THAT(refusal(both + "clients = \"optional\"\n"), HasSubstr("clients"));
}

TEST_F(TlsStartTest, FilesThatCannotBeUsedAreNamedWithTheirKey) {
  const auto names = [&](const char* key, const char* file, const char* why) {
    return AllOf(HasSubstr(fmt::format("gnomond.toml: {} = {}", key, (folder / file).string())),
                 HasSubstr(why));
  };
  EXPECT_THAT(refusal("certificate = \"absent.pem\"\nkey = \"server.key\"\n"),
              names("tls.certificate", "absent.pem", "No such file"));
  EXPECT_THAT(refusal("certificate = \"server.key\"\nkey = \"server.key\"\n"),
              names("tls.certificate", "server.key", "no certificate"));
  EXPECT_THAT(refusal("certificate = \"server.pem\"\nkey = \"server.pem\"\n"),
              names("tls.key", "server.pem", "no key"));
  authority.issue(folder.path(), "second");
  EXPECT_THAT(refusal("certificate = \"server.pem\"\nkey = \"second.key\"\n"),
              names("tls.key", "second.key", "not the key of"));
  authority.issue(folder.path(), "old", {.begins = -7200, .ends = -3600});
  EXPECT_THAT(refusal("certificate = \"old.pem\"\nkey = \"old.key\"\n"),
              names("tls.certificate", "old.pem", "it ended on 20"));
  EXPECT_THAT(refusal(both + "client_ca = \"server.key\"\n"),
              names("tls.client_ca", "server.key", "no certificate"));
}

// Nobody is asked for a password.
TEST_F(TlsStartTest, AnEncryptedKeyIsRefused) {
  const std::string key = read_file(folder / "server.key");
  const std::unique_ptr<BIO, int (*)(BIO*)> plain(
      BIO_new_mem_buf(key.data(), static_cast<int>(key.size())), BIO_free);
  const std::unique_ptr<EVP_PKEY, void (*)(EVP_PKEY*)> read(
      PEM_read_bio_PrivateKey(plain.get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  const std::unique_ptr<BIO, int (*)(BIO*)> file(BIO_new_file((folder / "locked.key").c_str(), "w"),
                                                 BIO_free);
  PEM_write_bio_PrivateKey(file.get(), read.get(), EVP_aes_256_cbc(), nullptr, 0, nullptr,
                           const_cast<char*>("password"));
  BIO_flush(file.get());
  EXPECT_THAT(refusal("certificate = \"server.pem\"\nkey = \"locked.key\"\n"),
              HasSubstr("not encrypted"));
}

}  // namespace
}  // namespace gnomon
