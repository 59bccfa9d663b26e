#include "trainer/engine/faults.h"

#include <fmt/format.h>

#include "base/errors.h"

namespace gnomon {

std::string fault_kind_name(FaultKind kind) {
  switch (kind) {
    case FaultKind::kFrozenAmax:
      return "frozen_amax";
    case FaultKind::kScaleShift:
      return "scale_shift";
    case FaultKind::kCorruptBatch:
      return "corrupt_batch";
    case FaultKind::kBitFlip:
      return "bit_flip";
  }
  throw Error("a fault kind without a name");
}

FaultKind fault_kind_from_name(const std::string& name) {
  for (FaultKind kind : {FaultKind::kFrozenAmax, FaultKind::kScaleShift, FaultKind::kCorruptBatch,
                         FaultKind::kBitFlip}) {
    if (fault_kind_name(kind) == name) return kind;
  }
  throw Error(fmt::format(
      "fault kind \"{}\" is unknown; accepted: frozen_amax, scale_shift, corrupt_batch, bit_flip",
      name));
}

std::string Fault::describe() const {
  std::string when = end_step == 0
                         ? fmt::format("from step {} on", start_step)
                         : fmt::format("from step {} to step {}", start_step, end_step - 1);
  switch (kind) {
    case FaultKind::kFrozenAmax:
      return fmt::format("the amax history of {}'s {} stops updating {}", site, tensor, when);
    case FaultKind::kScaleShift:
      return fmt::format("the quantisation scale of {}'s {} is off by 2^{} {}", site, tensor,
                         log2_factor, when);
    case FaultKind::kCorruptBatch:
      return fmt::format("the tokens are replaced by random ones {}", when);
    case FaultKind::kBitFlip:
      return fmt::format("bit {} of element {} of {} flips after step {}", bit, element, site,
                         start_step);
  }
  throw Error("a fault kind without a description");
}

}  // namespace gnomon
