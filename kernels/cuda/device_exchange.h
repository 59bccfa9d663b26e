// What ranks send each other from device to device, in the order of a stream. NCCL does it
// (nccl_exchange.h); where there is none, the host's collectives can.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "kernels/comm/collectives.h"
#include "kernels/memory.h"

namespace gnomon::cuda {

class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  // As Collectives::exchange, between memories of devices; `what` is what a message about an error
  // calls it. Returns when the work is on the stream.
  virtual void exchange(const char* what, std::span<const std::span<const std::byte>> to,
                        std::span<const std::span<std::byte>> from) = 0;
};

// By copies to the host and `ranks`; both must outlive it.
std::unique_ptr<DeviceExchange> make_host_exchange(Collectives& ranks, Memory& memory);

}  // namespace gnomon::cuda
