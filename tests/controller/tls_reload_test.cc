// A certificate that is replaced while gnomond serves.
#include "tests/controller/tls_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class TlsReloadTest : public TlsTest {
 protected:
  static constexpr const char* kEnds = "gnomon_tls_certificate_expiry_timestamp_seconds";
  static constexpr const char* kGood = "gnomon_tls_last_reload_successful";
  bool becomes(const char* name, const std::function<bool(double)>& condition) {
    return test::eventually([&] { return condition(metric(name)); }, std::chrono::seconds(20));
  }
};

TEST_F(TlsReloadTest, ANewFileIsForNewConnectionsAndOldOnesGoOn) {
  start();
  HttpClient old = daemon.client();
  old.checked("GET", "/livez");
  const double before = metric(kEnds);
  test::Authority next("another authority");
  next.issue(folder.path(), "server", {.ends = 7200});
  ASSERT_TRUE(logged("connections that begin now get the certificate"));
  EXPECT_EQ(old.checked("GET", "/livez").status, 200) << "on the connection there is";
  EXPECT_THAT(failure(reaching(access)), HasSubstr("not trusted"));
  next.write(folder / "ca.pem");
  EXPECT_EQ(failure(reaching(access)), "");
  EXPECT_LT(metric(kEnds), before);
}

// As Kubernetes does it: the files are links through a folder's link, which is replaced.
TEST_F(TlsReloadTest, ALinkThatLeadsElsewhereIsAChange) {
  std::filesystem::create_directories(folder / "first");
  std::filesystem::create_directories(folder / "second");
  authority.issue(folder / "first", "server", {.ends = 7200});
  authority.issue(folder / "second", "server", {.ends = 3600});
  std::filesystem::create_directory_symlink("first", folder / "now");
  for (const char* name : {"server.pem", "server.key"}) {
    std::filesystem::remove(folder / name);
    std::filesystem::create_symlink(std::filesystem::path("now") / name, folder / name);
  }
  start();
  const double before = metric(kEnds);
  std::filesystem::create_directory_symlink("second", folder / "next");
  std::filesystem::rename(folder / "next", folder / "now");
  EXPECT_TRUE(becomes(kEnds, [&](double ends) { return ends < before - 3000; }));
}

TEST_F(TlsReloadTest, AFileThatCannotBeUsedIsToldAndTheLastGoodOneStays) {
  start();
  const std::string good = read_file(folder / "server.key");
  write_file_atomically(folder / "server.key", "nothing");
  ASSERT_TRUE(becomes(kGood, [](double value) { return value == 0; }));
  EXPECT_THAT(daemon.log(), HasSubstr("the last good one stays: "));
  EXPECT_THAT(daemon.log(), HasSubstr((folder / "server.key").string()));
  EXPECT_EQ(failure(reaching(access)), "");
  authority.issue(folder.path(), "old", {.begins = -7200, .ends = -3600});
  std::filesystem::rename(folder / "old.key", folder / "server.key");
  std::filesystem::rename(folder / "old.pem", folder / "server.pem");
  EXPECT_TRUE(logged("it ended on"));
  EXPECT_EQ(failure(reaching(access)), "");
  authority.issue(folder.path(), "server", {.ends = 7200});
  EXPECT_TRUE(becomes(kGood, [](double value) { return value == 1; }));
}

TEST_F(TlsReloadTest, HangupTakesOtherNamesAndOtherAuthoritiesOfClients) {
  start();
  const double before = metric(kEnds);
  authority.issue(folder.path(), "other", {.ends = 7200});
  configure("client_ca = \"ca.pem\"\n");
  std::string text = read_file(folder / "gnomond.toml");
  for (const char* end : {"pem", "key"}) {
    text.replace(text.find(fmt::format("server.{}", end)), 6, "other");
  }
  write_file_atomically(folder / "gnomond.toml", text);
  HttpClient old = daemon.client();
  old.checked("GET", "/livez");
  daemon.signal(SIGHUP);
  ASSERT_TRUE(logged("the configuration was read again"));
  EXPECT_THAT(failure(reaching(access)), HasSubstr("does not accept this client's certificate"));
  access.certificate_file = (folder / "server.pem").string();
  access.key_file = (folder / "server.key").string();
  daemon.speak_tls(access);
  EXPECT_LT(metric(kEnds), before);
  EXPECT_EQ(old.checked("GET", "/livez").status, 200);
  EXPECT_THAT(daemon.log(), ::testing::Not(HasSubstr("a restart is needed")));
}

TEST_F(TlsReloadTest, HangupWithAFileThatCannotBeUsedChangesNothing) {
  // Only the signal looks.
  configure("look_seconds = 3600.0\n");
  std::string text = read_file(folder / "gnomond.toml");
  text.erase(text.find("look_seconds = 0.1\n"), 19);
  write_file_atomically(folder / "gnomond.toml", text);
  daemon.start();
  EXPECT_EQ(failure(reaching(access)), "") << "from now on it listens to signals";
  write_file_atomically(folder / "server.pem", "nothing");
  daemon.signal(SIGHUP);
  ASSERT_TRUE(logged("the configuration was not read again"));
  EXPECT_EQ(metric("gnomon_config_last_reload_successful"), 0);
  EXPECT_EQ(failure(reaching(access)), "");
  authority.issue(folder.path(), "server", {.ends = 7200});
  daemon.signal(SIGHUP);
  EXPECT_TRUE(becomes("gnomon_config_last_reload_successful", [](double v) { return v == 1; }));
}

TEST_F(TlsReloadTest, TlsIsSwitchedOffByARestart) {
  start();
  EXPECT_EQ(failure(reaching(access)), "");
  write_file_atomically(folder / "gnomond.toml", "[log]\nlevel = \"debug\"\n");
  daemon.signal(SIGHUP);
  ASSERT_TRUE(logged("a restart is needed for tls"));
  EXPECT_EQ(failure(reaching(access)), "");
}

}  // namespace
}  // namespace gnomon
