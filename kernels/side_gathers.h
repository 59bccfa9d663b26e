// All-gathers of weights that go on while a backend's operations do: by a thread where tensors lie
// in the host's memory, on a second stream of a device.
#pragma once

#include <memory>
#include <vector>

#include "kernels/comm/wires.h"

namespace gnomon {

class SideGathers {
 public:
  virtual ~SideGathers() = default;

  // Begins Wires::all_gather() of `weights`, laid out as the layout of this number, after the
  // operations that were called before, and returns. All ranks begin the same gathers in the same
  // order. The weights belong to the gather until finish(), and so do the ranks: until all gathers
  // are finished nothing else is said among them.
  virtual void start(int layout, WireFormat format, WeightSpan weights) = 0;
  // Operations called from now on come after the oldest gather that is not finished.
  virtual void finish() = 0;
};

// Gathers tensors in the host's memory. `ranks` must outlive it.
std::unique_ptr<SideGathers> make_host_side_gathers(Collectives& ranks,
                                                    std::vector<WireLayout> layouts);

}  // namespace gnomon
