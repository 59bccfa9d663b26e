// Nothing is allocated once a run is under way. This program counts what C++ code asks for through
// operator new, and what malloc has given out in all (oneDNN asks malloc directly).
#include <gtest/gtest.h>
#include <malloc.h>

#include <vector>

#include "tests/engine/counting_new.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/resident_memory.h"
#include "trainer/engine/statistics_collector.h"

namespace gnomon::test {
namespace {

// Bytes that malloc has given out and not got back.
size_t bytes_in_use() {
  struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class EngineMemory : public testing::TestWithParam<const char*> {
 protected:
  EngineMemory() : engine(wide_enough(directory.path())) {
    engine.set_plan(PrecisionPlan::parse(GetParam()));
    engine.initialize();
  }
  // Activations of a size that cannot be taken for something small; a remainder in the held-out
  // batch.
  static EngineConfig wide_enough(const std::filesystem::path& directory) {
    EngineConfig config = small_engine(directory);
    config.batch.tokens = 32;
    config.model.ffn = 512;
    config.threads = 1;
    return config;
  }
  void step_and_evaluate() {
    engine.train_step();
    engine.evaluate(PrecisionPlan::bf16());
    engine.evaluate(engine.plan());
  }

  TemporaryDirectory directory;
  Engine engine;
};

TEST_P(EngineMemory, NoStepKeepsMemoryOnceTheEngineIsPrepared) {
  size_t before = bytes_in_use();
  engine.prepare();
  EXPECT_GT(bytes_in_use(), before + 10'000);  // kernels were made
  step_and_evaluate();
  size_t start = bytes_in_use();
  for (int i = 0; i < 8; ++i) step_and_evaluate();
  // A history of `delayed` scaling is a std::deque: the block that it is at the end of may differ.
  constexpr size_t kDequeBlockBytes = 576;
  const size_t histories = 3 * engine.config().model.sites().size();
  EXPECT_LE(bytes_in_use(), start + histories * kDequeBlockBytes);
}

TEST_P(EngineMemory, NoStepAsksForAnythingBigOnceTheEngineIsPrepared) {
  engine.prepare();
  forget_requests();
  for (int i = 0; i < 3; ++i) step_and_evaluate();
  // An evaluation resolves its plan, for each site.
  EXPECT_LE(largest_request_bytes(), engine.config().model.sites().size() * sizeof(SitePrecision));
}

// A run that looks at its tensors every 100 steps: the 99 others ask for what a run without
// statistics asks for, and what a look took is given back or used again.
TEST_P(EngineMemory, StatisticsTakeNothingBetweenTwoLooks) {
  constexpr size_t kSlackBytes = 16 << 10;
  engine.prepare();
  for (int i = 0; i < 2; ++i) step_and_evaluate();
  auto requests_of_steps = [&] {
    forget_requests();
    for (int i = 0; i < 4; ++i) engine.train_step();
    return requests();
  };
  const size_t without = requests_of_steps();
  auto bytes_after_looks = [&] {
    const size_t start = bytes_in_use();
    StatisticsConfig all;
    all.what_if = {"block", "mx"};
    std::unique_ptr<StatisticsCollector> collector = engine.statistics(all, "test");
    engine.train_step(collector.get());
    EXPECT_GT(bytes_in_use(), start + kSlackBytes);  // its rows
    // A std::deque of `delayed` scaling takes and gives blocks as it moves on.
    EXPECT_LE(requests_of_steps(), without + 3 * engine.config().model.sites().size());
    const size_t one_look = bytes_in_use();
    for (int i = 0; i < 3; ++i) engine.train_step(collector.get());
    EXPECT_LE(bytes_in_use(), one_look + kSlackBytes);
    collector.reset();
    return bytes_in_use();
  };
  // The first looks may leave room that the threads work in; the second ones use it again.
  const size_t first = bytes_after_looks();
  EXPECT_LE(bytes_after_looks(), first + kSlackBytes);
}

TEST_P(EngineMemory, PreparingChangesNoBit) {
  std::vector<uint64_t> expected = train_hashes(engine, 4);
  double heldout = engine.evaluate(engine.plan());
  engine.initialize();
  for (int i = 0; i < 4; ++i) {
    engine.prepare();
    EXPECT_EQ(engine.train_step().weights_hash, expected[static_cast<size_t>(i)]);
  }
  engine.prepare();
  EXPECT_EQ(engine.evaluate(engine.plan()), heldout);
}

INSTANTIATE_TEST_SUITE_P(Plans, EngineMemory,
                         testing::Values("", "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n",
                                         "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = "
                                         "\"delayed\"\namax_history = 3\n"));

TEST(ResidentMemory, GrowsWithWhatIsTouched) {
  constexpr size_t kBytes = size_t{32} << 20;
  int64_t before = resident_bytes();
  std::vector<char> touched(kBytes, 'x');
  EXPECT_GE(resident_bytes(), before + static_cast<int64_t>(kBytes) / 10 * 9);
  EXPECT_GE(resident_bytes_peak(), before + static_cast<int64_t>(kBytes) / 10 * 9);
  EXPECT_EQ(touched[kBytes / 2], 'x');
}

}  // namespace
}  // namespace gnomon::test
