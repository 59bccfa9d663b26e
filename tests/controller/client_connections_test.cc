// Who gets a place among the server's connections, and whose place that was.
#include "controller/api/client_connections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

namespace gnomon {
namespace {

using Entry = ClientConnections::Entry;
using ::testing::ElementsAre;

constexpr size_t kNoBound = 1000;

class ClientConnectionsTest : public ::testing::Test {
 protected:
  struct Fake : ClientConnection {
    void stop() override { stopped = true; }
    void end() override { ended = true; }
    void look_at_token() override {}
    bool stopped = false, ended = false;
  };

  Fake& come(Entry expected) {
    open.push_back(std::make_shared<Fake>());
    EXPECT_EQ(connections.enter(open.back()), expected);
    return *open.back();
  }
  std::vector<size_t> ended() const {
    std::vector<size_t> numbers;
    for (size_t i = 0; i < open.size(); ++i) {
      if (open[i]->ended) numbers.push_back(i);
    }
    return numbers;
  }

  ClientConnections connections{3};
  std::vector<std::shared_ptr<Fake>> open;
};

TEST_F(ClientConnectionsTest, ANewConnectionReplacesTheOldestUnauthenticatedOne) {
  for (int i = 0; i < 3; ++i) come(Entry::kWelcome);
  EXPECT_TRUE(connections.give(*open[0], "ann", kNoBound));
  come(Entry::kForAnother);
  EXPECT_THAT(ended(), ElementsAre(1));
  come(Entry::kForAnother);
  EXPECT_THAT(ended(), ElementsAre(1, 2)) << "also while the first is still there";
  connections.leave(*open[1]);
  connections.leave(*open[2]);
  EXPECT_EQ(connections.counts().open, 3u);
  EXPECT_EQ(connections.counts().strangers, 2u);
}

TEST_F(ClientConnectionsTest,
       WhereAllAreSomebodysANewcomerIsRefusedAndCountsNoLongerThanItIsThere) {
  for (const char* name : {"ann", "bob", "eve"}) {
    EXPECT_TRUE(connections.give(come(Entry::kWelcome), name, kNoBound));
  }
  const Fake& refused = come(Entry::kFull);
  connections.leave(*open[0]);
  come(Entry::kWelcome);  // the refused one has no place that it could keep
  connections.leave(refused);
  EXPECT_THAT(ended(), ElementsAre());
  EXPECT_EQ(connections.counts().open, 3u);
}

TEST_F(ClientConnectionsTest, AClosedConnectionIsNeitherReusedNorClosedTwice) {
  for (int i = 0; i < 3; ++i) come(Entry::kWelcome);
  come(Entry::kForAnother);
  // Its request was under way.
  EXPECT_TRUE(connections.give(*open[0], "ann", kNoBound));
  EXPECT_TRUE(connections.give(*open[0], "", kNoBound));
  open[0]->ended = false;
  come(Entry::kForAnother);
  EXPECT_THAT(ended(), ElementsAre(1));
  EXPECT_EQ(connections.counts().strangers, 3u);
}

TEST_F(ClientConnectionsTest, ThereIsAnEndToThoseThatAreLeaving) {
  int refused = 0;
  for (int i = 0; i < 1000; ++i) {
    open.push_back(std::make_shared<Fake>());
    refused += connections.enter(open.back()) == Entry::kNoPlace;
  }
  EXPECT_EQ(connections.counts().open, 3u + 64u);
  EXPECT_EQ(refused, 1000 - 3 - 64);
  EXPECT_EQ(connections.counts().strangers, 3u);
  for (const auto& each : open) connections.leave(*each);  // also those that never got in
  EXPECT_EQ(connections.counts().open, 0u);
  come(Entry::kWelcome);
}

TEST_F(ClientConnectionsTest, EachHolderHasAsManyAsHeMay) {
  for (int i = 0; i < 3; ++i) come(Entry::kWelcome);
  EXPECT_TRUE(connections.give(*open[0], "ann", 2));
  EXPECT_TRUE(connections.give(*open[0], "ann", 2)) << "with every request";
  EXPECT_TRUE(connections.give(*open[1], "ann", 2));
  EXPECT_FALSE(connections.give(*open[2], "ann", 2));
  EXPECT_EQ(connections.counts().strangers, 1u) << "it is nobody's, as before";
  EXPECT_TRUE(connections.give(*open[2], "bob", 2));
  connections.leave(*open[1]);
  EXPECT_TRUE(connections.give(*open[2], "ann", 2)) << "a proxy's, of another client now";
  EXPECT_TRUE(connections.give(*open[0], "", 2)) << "its token was revoked";
  EXPECT_EQ(connections.counts().strangers, 1u);
  EXPECT_TRUE(connections.give(come(Entry::kWelcome), "ann", 2));
}

TEST_F(ClientConnectionsTest, AllOfThemCanBeStopped) {
  come(Entry::kWelcome);
  come(Entry::kWelcome);
  connections.leave(*open[0]);
  for (const auto& each : connections.all()) each->stop();
  EXPECT_FALSE(open[0]->stopped);
  EXPECT_TRUE(open[1]->stopped);
}

}  // namespace
}  // namespace gnomon
