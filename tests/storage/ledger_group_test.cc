// Work that a group of writes needs once (LedgerTransaction::before_commit): a cache over the
// ledger that saves its state once a group must lose nothing, whichever writes are undone.
#include <gmock/gmock.h>

#include <random>
#include <set>

#include "storage/ledger_decisions.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// What the supervisor does with a run's state, with a list of words for a state.
class Cache {
 public:
  // Adds a word to the state of `run`; throws afterwards when it is to fail.
  void add(LedgerTransaction& transaction, int64_t run, const std::string& word, bool fails) {
    transaction.on_rollback([this, run] { states_.erase(run); });
    if (!states_.contains(run)) {
      states_[run] = std::make_shared<const std::string>(
          ledger::load_state(transaction.connection(), run).value_or(ledger::StateRow{}).body);
    }
    std::shared_ptr<const std::string>& state = states_[run];
    state = std::make_shared<const std::string>(*state + word + " ");
    if (fails) throw Error("refused");
    transaction.before_commit(run, [this, run, value = state](Connection& connection) {
      ++saves_;
      if (save_fails_) throw Error("cannot save");
      ledger::save_state(connection, run, {0, *value});
    });
  }
  int saves() const { return saves_; }
  void let_saves_fail(bool fail) { save_fails_ = fail; }

 private:
  std::map<int64_t, std::shared_ptr<const std::string>> states_;
  int saves_ = 0;
  bool save_fails_ = false;
};

class LedgerGroupTest : public LedgerTest {
 protected:
  struct Wish {
    int64_t run;
    std::string word;
    bool fails = false;
  };
  // Posts all in one group; returns the words whose write was reported as done.
  std::vector<std::string> one_group(const std::vector<Wish>& wishes) {
    std::vector<std::string> done;
    Gate gate(ledger_);
    for (const Wish& wish : wishes) {
      EXPECT_TRUE(ledger_.post(
          [this, wish](LedgerTransaction& t) { cache_.add(t, wish.run, wish.word, wish.fails); },
          [&done, wish](std::exception_ptr error) {
            if (!error) done.push_back(wish.word);
          }));
    }
    std::promise<void> last;  // of the same group: what it waits for has been reported before
    EXPECT_TRUE(
        ledger_.post([](LedgerTransaction&) {}, [&](std::exception_ptr) { last.set_value(); }));
    gate.open();
    last.get_future().wait();
    return done;
  }
  std::string state(int64_t run) {
    std::string body;
    ledger_.read([&](Connection& connection) {
      body = ledger::load_state(connection, run).value_or(ledger::StateRow{}).body;
    });
    return body;
  }

  Cache cache_;
  Ledger ledger_{options()};
};

TEST_F(LedgerGroupTest, AKeyIsSavedOnceAGroupWithItsNewestValue) {
  EXPECT_THAT(one_group({{1, "a"}, {2, "x"}, {1, "b"}, {1, "c"}, {2, "y"}}),
              ElementsAre("a", "x", "b", "c", "y"));
  EXPECT_EQ(cache_.saves(), 2);
  EXPECT_EQ(state(1), "a b c ");
  EXPECT_EQ(state(2), "x y ");
}

TEST_F(LedgerGroupTest, AnUndoneWriteTakesItsOwnWishAloneWithIt) {
  one_group({{1, "a"}, {1, "undone", true}, {1, "b"}, {2, "undone", true}});
  EXPECT_EQ(state(1), "a b ") << "what is read again in the same group has what came before";
  EXPECT_EQ(state(2), "");
  one_group({{1, "undone", true}});
  one_group({{1, "c"}});
  EXPECT_EQ(state(1), "a b c ");
}

TEST_F(LedgerGroupTest, AFailureBeforeTheCommitUndoesTheWholeGroup) {
  one_group({{1, "before"}});
  cache_.let_saves_fail(true);
  EXPECT_THAT(one_group({{1, "a"}, {2, "x"}}), IsEmpty());
  EXPECT_THAT(one_group({{1, "a"}, {2, "undone", true}, {3, "z"}}), IsEmpty())
      << "also when it runs early";
  cache_.let_saves_fail(false);
  EXPECT_EQ(state(1), "before ");
  EXPECT_THAT(one_group({{1, "after"}}), ElementsAre("after"));
  EXPECT_EQ(state(1), "before after ");
  EXPECT_EQ(state(2), "") << "what a failed group wished is forgotten";
}

TEST_F(LedgerGroupTest, WhateverIsUndoneEachStateHasExactlyWhatWasReportedAsDone) {
  std::mt19937 random(7);
  std::map<int64_t, std::string> expected;
  for (int group = 0; group < 60; ++group) {
    std::vector<Wish> wishes;
    cache_.let_saves_fail(random() % 8 == 0);
    for (int i = 0; i < 12; ++i) {
      wishes.push_back({static_cast<int64_t>(random() % 3 + 1),
                        std::to_string(group) + "." + std::to_string(i), random() % 4 == 0});
    }
    const std::vector<std::string> done = one_group(wishes);
    const std::set<std::string> is_done(done.begin(), done.end());
    for (const Wish& wish : wishes) {
      if (is_done.contains(wish.word)) expected[wish.run] += wish.word + " ";
    }
    for (int64_t run = 1; run <= 3; ++run) ASSERT_EQ(state(run), expected[run]) << group;
  }
  EXPECT_GT(expected[1].size(), 100u);
}

}  // namespace
}  // namespace gnomon
