// The real gnomon-trainer with a gradient that is wrong in one computation of a step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/host.h"
#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::FakeController;
using test::TrainerFixture;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kTwiceSteps = 12;
const std::string kShare = "[verification]\nrecompute_share = 1\n";
const std::string kFlippedWeight = "model.layers.1.mlp.down_proj.weight";

std::string flipped_bit(int bit) {
  return "[[fault]]\nkind = \"bit_flip\"\ntensor = \"gradient\"\nstart_step = 7\nsite = \"" +
         kFlippedWeight + "\"\nelement = 3\nbit = " + std::to_string(bit) + "\n";
}

class GradientsTwiceProcess : public TrainerFixture {
 protected:
  // The hash of the weights at the run's end.
  std::string weights_of(const std::string& run, const std::string& extra,
                         const FakeController* controller = nullptr) {
    const std::filesystem::path dir = directory_ / run;
    std::vector<std::string> arguments = {"--dir", dir.string()};
    if (controller != nullptr) {
      arguments.insert(arguments.end(), {"--controller", controller->url()});
    }
    const auto trainer = start(config(kTwiceSteps, extra), arguments);
    EXPECT_EQ(trainer->wait(), 0) << trainer->output();
    output_ = trainer->output();
    return hash_of_model(newest(dir));
  }

  std::string output_;  // of the last one
};

TEST_F(GradientsTwiceProcess, AFlippedBitIsToldOfAndLeavesNothing) {
  const std::string healthy = weights_of("healthy", "");
  EXPECT_EQ(weights_of("healthy_twice", kShare), healthy);
  EXPECT_THAT(output_, Not(HasSubstr("computed again")));
  EXPECT_NE(weights_of("once", flipped_bit(27)), healthy);

  FakeController controller;
  EXPECT_EQ(weights_of("twice", kShare + flipped_bit(27), &controller), healthy);
  EXPECT_THAT(output_, HasSubstr("step 7: forward and backward pass gave other bits"));
  const auto received = controller.received();
  ASSERT_EQ(received.notices.size(), 1u);
  const TrainerNotice& notice = received.notices[0];
  EXPECT_EQ(notice.kind, "gradient_mismatch");
  EXPECT_EQ(notice.attempt, 1);
  EXPECT_EQ(notice.step, 7);
  EXPECT_THAT(notice.text,
              AllOf(HasSubstr("step 7"), HasSubstr(host_name()), HasSubstr(kFlippedWeight),
                    HasSubstr("agrees with the second"), HasSubstr("The run goes on")));
  EXPECT_EQ(received.steps.size(), static_cast<size_t>(kTwiceSteps));
}

TEST_F(GradientsTwiceProcess, ThreeResultsEndTheAttemptAndTheNextOneMakesTheStep) {
  const std::string healthy = weights_of("healthy", "");
  FakeController controller;
  const std::filesystem::path dir = directory_ / "sick";
  const std::vector<std::string> arguments = {"--dir", dir.string(), "--controller",
                                              controller.url()};
  const auto trainer =
      start(config(kTwiceSteps, kShare + flipped_bit(27) + flipped_bit(26)), arguments);
  EXPECT_EQ(trainer->wait(), 1) << trainer->output();
  EXPECT_THAT(trainer->output(),
              AllOf(HasSubstr("gnomon-trainer: step 7"), HasSubstr(host_name()),
                    HasSubstr("agrees with neither"), HasSubstr("No weight was changed")));
  const auto received = controller.received();
  EXPECT_EQ(received.steps.size(), 6u);
  ASSERT_EQ(received.notices.size(), 1u);
  EXPECT_EQ(received.notices[0].kind, "gradient_mismatch");
  EXPECT_EQ(received.notices[0].step, 6);
  EXPECT_TRUE(received.finished.empty()) << "another attempt may follow";

  EXPECT_EQ(weights_of("sick", kShare, &controller), healthy);
  EXPECT_EQ(controller.received().attempts.size(), 2u);
}

}  // namespace
}  // namespace gnomon
