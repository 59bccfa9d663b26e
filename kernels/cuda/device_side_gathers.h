// Gathers of weights on a second stream of the device, between events of the two streams.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/device_exchange.h"
#include "kernels/cuda/launch.h"
#include "kernels/side_gathers.h"

namespace gnomon::cuda {

// A stream beside that of the operations, and what ranks exchange on it.
class SideStream {
 public:
  virtual ~SideStream() = default;

  virtual Stream stream() = 0;
  virtual DeviceExchange& exchange() = 0;
  // What is put on this stream from now on comes after what is on the operations' now.
  virtual void follow_operations() = 0;
  // Called later, the result has operations that are put on their stream from then on come after
  // what is on this one now.
  virtual std::function<void()> mark() = 0;
};

// `side` belongs to it; `memory` must outlive it.
std::unique_ptr<SideGathers> make_device_side_gathers(std::unique_ptr<SideStream> side,
                                                      Memory& memory,
                                                      std::vector<WireLayout> layouts);

// For a device whose operations have one stream: an exchange on it is no later than what follows.
std::unique_ptr<SideStream> make_same_stream(std::unique_ptr<DeviceExchange> exchange,
                                             Stream stream);

}  // namespace gnomon::cuda
