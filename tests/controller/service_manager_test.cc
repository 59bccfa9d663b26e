// What a service manager hears of a real daemon.
#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <csignal>

#include "base/files.h"
#include "tests/support/daemon_process.h"

namespace gnomon {
namespace {

using test::ChildOptions;
using test::DaemonProcess;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The socket of a service manager.
class ServiceManagerTest : public ::testing::Test {
 protected:
  ServiceManagerTest() : socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().string().copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::bind(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address),
              0);
  }
  std::filesystem::path path() const { return folder_ / "notify"; }
  ChildOptions options(const std::string& watchdog_microseconds = "") const {
    ChildOptions options;
    options.environment = {{"NOTIFY_SOCKET", path().string()}};
    if (!watchdog_microseconds.empty()) {
      options.environment.emplace_back("WATCHDOG_USEC", watchdog_microseconds);
    }
    return options;
  }
  // The next message; empty when there is none within `milliseconds`.
  std::string next(int milliseconds = 20'000) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (::poll(&wait, 1, milliseconds) != 1) return {};
    std::string message(4096, '\0');
    const ssize_t size = ::recv(socket_.get(), message.data(), message.size(), 0);
    message.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
    return message;
  }

  test::TemporaryDirectory folder_;
  FileDescriptor socket_;
};

TEST_F(ServiceManagerTest, IsToldOfTheStartAReloadAndTheEnd) {
  DaemonProcess daemon;
  daemon.start(options());
  EXPECT_THAT(next(), AllOf(StartsWith("READY=1\nSTATUS=listens on"), HasSubstr("port")));
  daemon.signal(SIGHUP);
  EXPECT_THAT(next(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_THAT(next(), StartsWith("READY=1"));
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_THAT(next(), StartsWith("STOPPING=1"));
  EXPECT_EQ(next(0), "");
}

TEST_F(ServiceManagerTest, IsToldOfTheEndBeforeTheDrain) {
  const std::filesystem::path config = folder_ / "gnomond.toml";
  write_file_atomically(config, "[limits]\ndrain_seconds = 60\n");
  DaemonProcess daemon({"--config", config.string()});
  daemon.start(options());
  EXPECT_THAT(next(), StartsWith("READY=1"));
  daemon.signal(SIGTERM);
  EXPECT_THAT(next(), StartsWith("STOPPING=1"));
  EXPECT_EQ(daemon.client().request("GET", "/livez").status, 200);
  EXPECT_EQ(daemon.stop(), 0);
  EXPECT_EQ(next(0), "");
}

TEST_F(ServiceManagerTest, AWatchdogSeesSignsOfLifeAndNoneOfAStoppedProcess) {
  DaemonProcess daemon;
  daemon.start(options("100000"));
  EXPECT_THAT(next(), StartsWith("READY=1"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(next(), "WATCHDOG=1");
  daemon.signal(SIGSTOP);
  while (!next(100).empty()) {
  }
  EXPECT_EQ(next(300), "");
  daemon.signal(SIGCONT);
  EXPECT_EQ(next(), "WATCHDOG=1");
  EXPECT_EQ(daemon.stop(), 0);
}

}  // namespace
}  // namespace gnomon
