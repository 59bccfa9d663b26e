#include "trainer/engine/gather_plan.h"

namespace gnomon {
namespace {

constexpr int kEmbeddingUnit = 0;

int slot_of(int unit, int head) {
  return unit == kEmbeddingUnit || unit == head ? kEndsSlot : unit % 2;
}

}  // namespace

std::vector<int> units_of_pass(int layers, int head, bool trains) {
  std::vector<int> units{kEmbeddingUnit};
  for (int layer = 1; layer <= layers; ++layer) units.push_back(layer);
  units.push_back(head);
  if (!trains) return units;
  for (int layer = layers; layer >= 1; --layer) units.push_back(layer);
  return units;
}

GatherPlan plan_gathers(const std::vector<int>& units, int head, SlotContents& contents) {
  GatherPlan plan;
  std::array<size_t, kWeightSlots> free_from{};  // the use at which the slot's last one is over
  for (size_t use = 0; use < units.size(); ++use) {
    const int unit = units[use], slot = slot_of(unit, head);
    const auto at = static_cast<size_t>(slot);
    if (contents[at] != unit) {
      plan.gathers.push_back({unit, slot, free_from[at]});
      contents[at] = unit;
    }
    plan.uses.push_back({unit, slot, plan.gathers.size()});
    free_from[at] = use + 1;
  }
  return plan;
}

}  // namespace gnomon
