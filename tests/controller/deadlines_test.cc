#include "controller/supervisor/deadlines.h"

#include <gmock/gmock.h>

#include <limits>

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(DeadlinesTest, ARunIsDueFromItsMomentOnUntilItHasAnother) {
  Deadlines deadlines;
  deadlines.set(2, 10.0);
  deadlines.set(1, 12.0);
  EXPECT_THAT(deadlines.due(9.9), IsEmpty());
  EXPECT_THAT(deadlines.due(10.0), ElementsAre(2));
  EXPECT_THAT(deadlines.due(12.0), ElementsAre(1, 2));
  deadlines.set(2, 20.0);
  EXPECT_THAT(deadlines.due(12.0), ElementsAre(1));
}

TEST(DeadlinesTest, ARunWithoutADeadlineIsNeverDue) {
  Deadlines deadlines;
  deadlines.set(1, 10.0);
  deadlines.set(1, std::numeric_limits<double>::infinity());
  EXPECT_THAT(deadlines.due(1e300), IsEmpty());
}

}  // namespace
}  // namespace gnomon
