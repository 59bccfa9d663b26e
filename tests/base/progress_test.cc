#include "base/progress.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <limits>

namespace gnomon {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(FormatDuration, IsForPeople) {
  EXPECT_EQ(format_duration(0), "0s");
  EXPECT_EQ(format_duration(12.4), "12s");
  EXPECT_EQ(format_duration(59.4), "59s");
  EXPECT_EQ(format_duration(59.6), "1m 00s");
  EXPECT_EQ(format_duration(200), "3m 20s");
  EXPECT_EQ(format_duration(3599.6), "1h 00m");
  EXPECT_EQ(format_duration(3725), "1h 02m");
  EXPECT_EQ(format_duration(360000), "100h 00m");
}

TEST(FormatDuration, HasNoWordForNonsense) {
  EXPECT_EQ(format_duration(-1), "?");
  EXPECT_EQ(format_duration(std::nan("")), "?");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

// What a Progress writes to a stream that is no terminal.
class ProgressTest : public testing::Test {
 protected:
  ~ProgressTest() override {
    std::fclose(out_);
    std::free(text_);
  }
  std::string text() {
    std::fflush(out_);
    return {text_, size_};
  }
  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* out_ = ::open_memstream(&text_, &size_);
};

TEST_F(ProgressTest, WritesPlainLinesWithoutATerminal) {
  Progress progress("train", 200, out_);
  progress.update(50, "loss 2.31");
  progress.update(51, "too soon to be shown");
  EXPECT_THAT(text(), StartsWith("train 50/200  25%  loss 2.31"));
  EXPECT_EQ(text().find("too soon"), std::string::npos);
  EXPECT_EQ(text().find("left"), std::string::npos) << "no rate is known yet";
  progress.finish("done");
  EXPECT_THAT(text(), HasSubstr("train 51/200  26%  done  took 0s\n"));
  EXPECT_EQ(text().find('\r'), std::string::npos);
}

TEST_F(ProgressTest, MessagesAreLinesOfTheirOwn) {
  Progress progress("train", 0, out_);
  progress.update(3);
  progress.message("checkpoint written");
  EXPECT_THAT(text(), HasSubstr("\ncheckpoint written\n"));
}

TEST_F(ProgressTest, FinishesOnce) {
  {
    Progress progress("train", 2, out_);
    progress.update(2);
    progress.finish();
    progress.finish();
  }
  std::string all = text();
  EXPECT_EQ(all.find("took"), all.rfind("took"));
}

}  // namespace
}  // namespace gnomon
