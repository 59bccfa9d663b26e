// How the policy's windows are fitted to a run's checkpoints.
#include "controller/decide/window_lengths.h"

#include <gtest/gtest.h>

namespace gnomon::decide {
namespace {

WindowLengths lengths(int64_t steps, int64_t every, int64_t checkpoint_every, int64_t chosen = 0) {
  Policy policy;
  policy.window.steps = steps;
  policy.window.every = every;
  State state;
  state.run.checkpoint_every = checkpoint_every;
  state.watch.every = chosen;
  return window_lengths(state, policy);
}

TEST(WindowLengths, WhatFitsCheckpointsIsTakenAsItIs) {
  const WindowLengths made = lengths(25, 50, 25);
  EXPECT_EQ(made.unit, 25);
  EXPECT_EQ(made.steps, 25);
  EXPECT_EQ(made.every, 50);
  EXPECT_EQ(lengths(25, 60, 25).every, 75);
  EXPECT_EQ(lengths(25, 50, 0).every, 50) << "a run that said no interval";
}

TEST(WindowLengths, LongerWindowsVerifyNoGreaterShareThanAskedFor) {
  const WindowLengths made = lengths(25, 50, 100);
  EXPECT_EQ(made.steps, 100);
  EXPECT_EQ(made.every, 200);
  for (int64_t steps = 1; steps < 40; ++steps) {
    for (int64_t every = steps; every < 80; every += 3) {
      for (const int64_t unit : {1, 7, 10, 64, 1000}) {
        const WindowLengths used = lengths(steps, every, unit);
        EXPECT_EQ(used.steps % unit, 0);
        EXPECT_EQ(used.every % unit, 0);
        EXPECT_GE(used.steps, steps);
        EXPECT_LE(used.steps * every, used.every * steps) << steps << " " << every << " " << unit;
        EXPECT_LT(used.every * steps, used.steps * every + (unit + 1) * steps)
            << "and not much less: " << steps << " " << every << " " << unit;
      }
    }
  }
}

TEST(WindowLengths, EveryStepStaysEveryStep) {
  const WindowLengths made = lengths(10, 10, 64);
  EXPECT_EQ(made.steps, 64);
  EXPECT_EQ(made.every, 64);
}

TEST(WindowLengths, AChosenCadenceIsOnlyRounded) {
  EXPECT_EQ(lengths(25, 50, 100, 300).every, 300);
  EXPECT_EQ(lengths(25, 50, 100, 310).every, 400);
  EXPECT_EQ(lengths(25, 50, 100, 40).every, 100) << "windows do not overlap";
}

TEST(WindowLengths, TheLargestOnesFit) {
  const WindowLengths made = lengths(1'000'000'000, 1'000'000'000, 1'000'000'000);
  EXPECT_EQ(made.steps, 1'000'000'000);
  EXPECT_EQ(made.every, 1'000'000'000);
  // What a registration and a policy may say at most: beyond all runs, and no overflow.
  const int64_t most = int64_t{1} << 53;
  EXPECT_GE(lengths(1, 1'000'000'000, most).every, most);
  EXPECT_GE(lengths(1'000'000'000, 1'000'000'000, most).every, most);
}

}  // namespace
}  // namespace gnomon::decide
