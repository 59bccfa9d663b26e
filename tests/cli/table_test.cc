#include "cli/table.h"

#include <gmock/gmock.h>

namespace gnomon::cli {
namespace {

TEST(TableTest, ColumnsStandBelowEachOtherWhateverTheirTextsAreWrittenIn) {
  Table table({"RUN", ">STEPS", "TOLD"});
  table.add({"naïve", "7", "first"});
  table.add({"訓練", "1024", "second"});
  EXPECT_EQ(table.text(),
            "RUN    STEPS  TOLD\n"
            "naïve      7  first\n"
            "訓練    1024  second\n");
}

}  // namespace
}  // namespace gnomon::cli
