// Ranks that meet over TCP, each a real process: those that do not come, come twice, come to the
// wrong place, and strangers at the port.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <sstream>
#include <thread>

#include "base/errors.h"
#include "kernels/comm/sockets.h"
#include "tests/ranks/launcher.h"
#include "tests/support/temporary_directory.h"

namespace gnomon {
namespace {

using std::chrono::seconds;
using test::ChildProcess;
using testing::HasSubstr;

tcp::Endpoint loopback(int port) { return tcp::resolve("127.0.0.1", port).front(); }

class Rendezvous : public testing::Test {
 protected:
  // Below those that the system gives away, free a moment ago.
  static int free_port() {
    static int next = 0;
    while (true) {
      const int port = 10000 + (static_cast<int>(getpid()) + 997 * next++) % 20000;
      try {
        tcp::listen_at(loopback(port), 1);
        return port;
      } catch (const SystemError&) {
        // Somebody has it.
      }
    }
  }

  using Variable = std::pair<std::string, std::optional<std::string>>;
  std::unique_ptr<ChildProcess> start(int rank, int size, std::vector<Variable> more = {},
                                      const std::string& trouble = "none") {
    test::ChildOptions options{.environment = {{"RANK", std::to_string(rank)},
                                               {"WORLD_SIZE", std::to_string(size)},
                                               {"MASTER_ADDR", "127.0.0.1"},
                                               {"MASTER_PORT", std::to_string(port_)},
                                               {"GNOMON_RENDEZVOUS_SECONDS", "20"}}};
    for (Variable& variable : more) options.environment.push_back(std::move(variable));
    const auto output = directory_.path() / ("output" + std::to_string(++started_));
    return std::make_unique<ChildProcess>(
        std::vector<std::string>{GNOMON_RANKS_IN_TROUBLE, trouble}, output, options);
  }
  void expect_refused(ChildProcess& process, const std::string& message) {
    EXPECT_EQ(process.wait(seconds(30)), 1) << process.output();
    EXPECT_THAT(process.output(), HasSubstr(message));
  }
  void expect_good(ChildProcess& process) {
    EXPECT_EQ(process.wait(seconds(30)), 0) << process.output();
  }

  // Until `count` ranks have reached rank 0's port: the system's table has an established
  // connection of each.
  void wait_for_ranks_at_the_port(int count) const {
    const std::string at_port = fmt::format("0100007F:{:04X}", port_);
    const auto end = std::chrono::steady_clock::now() + seconds(20);
    while (true) {
      std::ifstream table("/proc/net/tcp");
      std::string line;
      int found = 0;
      while (std::getline(table, line)) {
        std::istringstream fields(line);
        std::string number, local, remote, state;
        fields >> number >> local >> remote >> state;
        found += local == at_port && state == "01" ? 1 : 0;
      }
      if (found >= count) return;
      ASSERT_LT(std::chrono::steady_clock::now(), end) << found << " ranks of " << count;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  test::TemporaryDirectory directory_;
  int port_ = free_port();
  int started_ = 0;
};

TEST_F(Rendezvous, RanksMayComeInAnyOrder) {
  const auto two = start(2, 3), one = start(1, 3);
  // Nothing tells that they have knocked at a port where nobody listens; a start that takes longer
  // makes this an easier test, not one that fails.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const auto first = start(0, 3);
  for (ChildProcess* it : {two.get(), one.get(), first.get()}) expect_good(*it);
  EXPECT_EQ(first->output(), "finished\n");
}

TEST_F(Rendezvous, RanksThatDoNotComeAreNamedByAllThatDid) {
  const std::vector<Variable> soon = {{"GNOMON_RENDEZVOUS_SECONDS", "1"}};
  const auto first = start(0, 4, soon), two = start(2, 4, soon);
  for (ChildProcess* it : {first.get(), two.get()}) {
    expect_refused(*it, "ranks 1, 3 of 4 did not come to rank 0 at 127.0.0.1 port " +
                            std::to_string(port_) + " within 1 s");
  }
}

TEST_F(Rendezvous, ARankWithoutTheFirstSaysWhereItLooked) {
  const auto one = start(1, 2, {{"GNOMON_RENDEZVOUS_SECONDS", "1"}});
  expect_refused(*one, "found no rank 0 within 1 s (127.0.0.1 port " + std::to_string(port_));
}

TEST_F(Rendezvous, TwoRanksOfOneNumberEndTheJob) {
  const auto first = start(0, 3), one = start(1, 3);
  wait_for_ranks_at_the_port(1);
  const auto again = start(1, 3);
  for (ChildProcess* it : {first.get(), one.get(), again.get()}) {
    expect_refused(*it, "two processes have RANK 1");
  }
}

TEST_F(Rendezvous, ARankThatDiedWhileItWaitedMayComeAgain) {
  const auto first = start(0, 3), one = start(1, 3);
  wait_for_ranks_at_the_port(1);
  one->signal(SIGKILL);
  one->wait(seconds(30));
  const auto two = start(2, 3);
  wait_for_ranks_at_the_port(1);
  const auto again = start(1, 3);
  for (ChildProcess* it : {first.get(), again.get(), two.get()}) expect_good(*it);
}

TEST_F(Rendezvous, TwoFirstRanksAreFoundByThePort) {
  const auto first = start(0, 2);
  ASSERT_TRUE(test::eventually(
      [&] { return tcp::connect_to(loopback(port_), tcp::seconds_from_now(1)).has_value(); }));
  const auto again = start(0, 2);
  expect_refused(*again, "another program does. Choose another MASTER_PORT");
  const auto one = start(1, 2);
  expect_good(*first);
  expect_good(*one);
}

TEST_F(Rendezvous, RanksOfAnotherJobAreSentAwayAndThisOneGoesOn) {
  const auto first = start(0, 2, {{"GNOMON_JOB", "a"}});
  const auto other = start(1, 2, {{"GNOMON_JOB", "b"}}),
             larger = start(1, 3, {{"GNOMON_JOB", "a"}});
  expect_refused(*other, "has job \"a\" of 2 ranks, not \"b\" of 2");
  expect_refused(*larger, "has job \"a\" of 2 ranks, not \"a\" of 3");
  const auto one = start(1, 2, {{"GNOMON_JOB", "a"}});
  expect_good(*first);
  expect_good(*one);
}

TEST_F(Rendezvous, StrangersAtThePortDoNotDisturb) {
  const auto first = start(0, 2);
  std::vector<FileDescriptor> strangers;
  ASSERT_TRUE(test::eventually([&] {
    auto stranger = tcp::connect_to(loopback(port_), tcp::seconds_from_now(1));
    if (stranger) strangers.push_back(std::move(*stranger));
    return !strangers.empty();
  }));
  for (const std::string text : {"GET / HTTP/1.1\r\n\r\n", "gnomon", "gnomon\r\n"}) {
    auto stranger = tcp::connect_to(loopback(port_), tcp::seconds_from_now(1));
    ASSERT_TRUE(stranger);
    const std::string garbage = text == "gnomon\r\n" ? text + std::string(96, '\x01') : text;
    tcp::send_all(*stranger, std::as_bytes(std::span(garbage)), tcp::seconds_from_now(1));
    strangers.push_back(std::move(*stranger));
  }
  const auto one = start(1, 2);
  expect_good(*first);
  expect_good(*one);
}

TEST_F(Rendezvous, AnotherProgramAtThePortIsNoRank0) {
  const FileDescriptor server = tcp::listen_at(loopback(port_), 4);
  expect_refused(*start(0, 2), "another program does");
  const auto one = start(1, 2);
  std::optional<FileDescriptor> guest;
  ASSERT_TRUE(test::eventually([&] {
    guest = tcp::accept_from(server);
    return guest.has_value();
  }));
  const std::string text = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
  tcp::send_all(*guest, std::as_bytes(std::span(text)), tcp::seconds_from_now(1));
  expect_refused(*one, "is no rank 0 of this program");
}

TEST_F(Rendezvous, AnAddressOfAnotherHostIsNoneToListenAt) {
  // The address is from a net reserved for documentation.
  expect_refused(*start(0, 2, {{"MASTER_ADDR", "192.0.2.1"}}), "cannot listen at MASTER_ADDR");
  expect_refused(*start(0, 2, {{"MASTER_ADDR", "no.such.host.invalid"}}), "cannot be found");
}

TEST_F(Rendezvous, ARankThatIsStoppedEndsTheOthersInTime) {
  const auto first = start(0, 3, {}, "stopped"), one = start(1, 3, {}, "stopped");
  const auto two = start(2, 3, {}, "stopped");
  expect_refused(*first, "with rank 1, longer than allowed");
  EXPECT_EQ(two->wait(seconds(30)), 1);
  EXPECT_EQ(two->output(), "");
  EXPECT_TRUE(one->running());
  one->signal(SIGKILL);
}

TEST_F(Rendezvous, WithoutTheFirstOneOfTheOthersSpeaks) {
  const auto first = start(0, 3, {}, "hangs"), one = start(1, 3, {}, "hangs");
  const auto two = start(2, 3, {}, "hangs");
  // Rank 1 hangs; the others have met when rank 0 waits for it.
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  first->signal(SIGKILL);
  EXPECT_EQ(one->wait(seconds(30)), 1);
  EXPECT_EQ(two->wait(seconds(30)), 1);
  EXPECT_THAT(one->output(), HasSubstr("rank 1 of 3: rank 0 is gone"));
  EXPECT_EQ(two->output(), "");
}

}  // namespace
}  // namespace gnomon
