// Wires of tensors in a device's memory: codes are made, sent, decoded and summed without the host,
// to the bits that CompressedCollectives gives.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/comm/wires.h"
#include "kernels/cuda/device_exchange.h"
#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

constexpr int64_t kInFlightBytes = int64_t{4} << 20;

// Takes, at their first use, room for `in_flight_bytes` (a multiple of 512) from and to each rank,
// and for all scales. `exchange`, which may serve several, and `memory` must outlive it; `stream`
// is that of the operations that make and read the tensors.
std::unique_ptr<Wires> make_device_wires(DeviceExchange& exchange, Memory& memory, Stream stream,
                                         WireLayout layout,
                                         int64_t in_flight_bytes = kInFlightBytes);

}  // namespace gnomon::cuda
