// Which units of weights a pass gathers, into which slot, and how early: a function of the order in
// which the pass uses them and of what the slots hold before it, so that every rank, whatever it
// computes meanwhile, gathers the same.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace gnomon {

// Layers take turns in two slots; embedding and head share the third.
constexpr int kWeightSlots = 3;
constexpr int kEndsSlot = 2;
constexpr int kNoUnit = -1;
using SlotContents = std::array<int, kWeightSlots>;  // units

struct GatherPlan {
  struct Use {
    int unit = 0;
    int slot = 0;
    size_t gathers = 0;  // that are finished before it
  };
  struct Gather {
    int unit = 0;
    int slot = 0;
    size_t from_use = 0;  // begins when this use does: those of what was in the slot are over
  };
  std::vector<Use> uses;
  std::vector<Gather> gathers;  // in the order in which they are begun and finished
};

// The uses, in order, of a pass through the first `layers` layers of units numbered as WeightUnits
// does, `head` being the head's; with `trains` the way back as well.
std::vector<int> units_of_pass(int layers, int head, bool trains);
// `contents` becomes what the slots hold after the pass.
GatherPlan plan_gathers(const std::vector<int>& units, int head, SlotContents& contents);

}  // namespace gnomon
