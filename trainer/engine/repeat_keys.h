// Which passes of a step do the same work, so that a device may record it once and repeat it
// (BackendBase::repeat): for each plan, and for the first and the later micro-batches of a step.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "trainer/engine/linear.h"

namespace gnomon {

class RepeatKeys {
 public:
  // Work that was recorded for more kinds of passes than this is forgotten, all of it.
  static constexpr size_t kKindsMost = 16;

  // The key of this pass of a step, which accumulates gradients or not; `histories` is
  // ScalingState::known(). 0 for a pass that somebody looks on at.
  uint64_t key(const PassPlan& pass, uint64_t histories, bool accumulate, BackendBase& backend);

 private:
  struct Kind {
    std::vector<SitePrecision> sites;
    bool fakequant = false;
    uint64_t histories = 0;
    bool operator==(const Kind&) const = default;
  };
  std::vector<Kind> kinds_;
  uint64_t forgotten_ = 0;  // kinds, ever
};

}  // namespace gnomon
