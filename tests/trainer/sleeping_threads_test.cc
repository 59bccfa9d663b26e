// Programs that compute let OpenMP's threads sleep while they wait, unless the user has said how.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>

#include "tests/trainer/trainer_fixture.h"

namespace gnomon {
namespace {

using test::ChildOptions;
using test::ChildProcess;
using test::eventually;
using test::TrainerFixture;
using Clock = std::chrono::steady_clock;

class SleepingThreads : public TrainerFixture {
 protected:
  using Environment = decltype(ChildOptions::environment);
  std::unique_ptr<ChildProcess> train(const std::string& dir, const std::filesystem::path& file,
                                      Environment environment) {
    return launch({GNOMON_TRAINER, "--config", file.string(), "--dir", (directory_ / dir).string(),
                   "--threads", "2"},
                  {.environment = std::move(environment)});
  }
  // Starts a trainer that trains for long; returns its environment.
  std::string environment_with(const Environment& environment) {
    const auto trainer =
        train(fmt::format("for_long_{}", ++runs_), config(10'000'000), environment);
    EXPECT_TRUE(eventually([&] {
      return trainer->output().find("memory taken at start") != std::string::npos;
    })) << trainer->output();
    name_ = read_file(fmt::format("/proc/{}/comm", trainer->pid()));
    return read_file(fmt::format("/proc/{}/environ", trainer->pid()));
  }
  int runs_ = 0;
  std::string name_;
};

const decltype(ChildOptions::environment) kUnset = {{"OMP_WAIT_POLICY", std::nullopt},
                                                    {"GOMP_SPINCOUNT", std::nullopt}};

TEST_F(SleepingThreads, AreTheDefaultAndTheUsersWordCounts) {
  using testing::HasSubstr;
  using testing::Not;
  EXPECT_THAT(environment_with(kUnset), HasSubstr("OMP_WAIT_POLICY=passive"));
  EXPECT_EQ(name_, "gnomon-trainer\n");
  EXPECT_THAT(environment_with({{"OMP_WAIT_POLICY", "active"}}),
              HasSubstr("OMP_WAIT_POLICY=active"));
  EXPECT_THAT(environment_with({{"OMP_WAIT_POLICY", std::nullopt}, {"GOMP_SPINCOUNT", "100"}}),
              Not(HasSubstr("OMP_WAIT_POLICY")));
}

// Two trainers with two threads each on two cores, against the same with the variable.
TEST_F(SleepingThreads, TwoTrainersBesideEachOtherTakeNoLongerThanWithTheVariable) {
  cpu_set_t all, two;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_ZERO(&two);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&two) < 2; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &two);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(two), &two), 0);
  const auto seconds_of_two = [&](const std::string& name, const Environment& environment) {
    const std::filesystem::path file = config(60);
    const auto start = Clock::now();
    const auto first = train(name + "_1", file, environment);
    const auto second = train(name + "_2", file, environment);
    EXPECT_EQ(first->wait(), 0) << first->output();
    EXPECT_EQ(second->wait(), 0) << second->output();
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  const double with_variable = seconds_of_two("passive", {{"OMP_WAIT_POLICY", "passive"}});
  const double without = seconds_of_two("unset", kUnset);
  sched_setaffinity(0, sizeof(all), &all);
  RecordProperty("seconds_with", std::to_string(with_variable));
  RecordProperty("seconds_without", std::to_string(without));
  EXPECT_LT(without, 5 * with_variable + 2);
}

}  // namespace
}  // namespace gnomon
