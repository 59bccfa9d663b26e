// Ranks with a GPU each, over NCCL: sends and receives only, every sum being made by our kernels in
// rank order. Nothing waits without a limit, and an error that NCCL finds while the device works
// ends all ranks with one message.
#pragma once

#include <memory>

#include "kernels/cuda/device_exchange.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/stream_mark.h"

namespace gnomon::cuda {

// All ranks call it together; `ranks` connects them and must outlive the result. `mark`
// is one of the stream's. An operation that is not done after `timeout_seconds` ends the job, as a
// rank that is lost does. Throws Error on every rank where one has no NCCL.
std::unique_ptr<DeviceExchange> make_nccl_exchange(Collectives& ranks, Stream stream,
                                                   std::unique_ptr<StreamMark> mark,
                                                   double timeout_seconds);

}  // namespace gnomon::cuda
