// What all requests hold together is bounded, and no sender has it all.
#include "controller/api/byte_budget.h"

#include <gtest/gtest.h>

#include <optional>

namespace gnomon {
namespace {

constexpr size_t kFree = ByteBudget::kFree;

TEST(ByteBudgetTest, SmallRequestsAreAlwaysAccepted) {
  ByteBudget budget(0);
  ByteBudget::Share first(budget), second(budget);
  EXPECT_TRUE(first.resize(kFree));
  EXPECT_TRUE(second.resize(kFree));
  EXPECT_EQ(budget.held(), 0u);
  EXPECT_FALSE(first.resize(kFree + 1));
}

TEST(ByteBudgetTest, AFullBudgetGrantsNothingUntilBytesAreReleased) {
  ByteBudget budget(100);
  std::optional<ByteBudget::Share> first(budget);
  ByteBudget::Share second(budget);
  EXPECT_TRUE(first->resize(kFree + 70));
  EXPECT_TRUE(second.resize(kFree + 30));
  EXPECT_FALSE(second.resize(kFree + 31));
  EXPECT_EQ(budget.held(), 100u) << "what was refused changed nothing";
  EXPECT_TRUE(second.resize(kFree + 10)) << "less is always possible";
  first.reset();
  EXPECT_EQ(budget.held(), 10u);
  EXPECT_TRUE(second.resize(kFree + 100));
}

TEST(ByteBudgetTest, OneHolderHasHalfOverAllHisShares) {
  ByteBudget budget(100);
  ByteBudget::Share first(budget), second(budget), of_another(budget);
  first.set_holder("ann");
  second.set_holder("ann");
  of_another.set_holder("ben");
  EXPECT_TRUE(first.resize(kFree + 40));
  EXPECT_FALSE(second.resize(kFree + 11));
  EXPECT_TRUE(second.resize(kFree + 10));
  EXPECT_TRUE(of_another.resize(kFree + 50));
  EXPECT_TRUE(first.resize(0));
  EXPECT_TRUE(second.resize(kFree + 50));
  EXPECT_EQ(budget.held(), 100u);
}

}  // namespace
}  // namespace gnomon
