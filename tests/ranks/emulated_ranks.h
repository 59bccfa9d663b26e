// Ranks whose engines run on the CUDA backend, emulated on the CPU: what a GPU for each would do.
#pragma once

#include "kernels/backend.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/stream_mark.h"
#include "tests/engine/emulated_machine.h"
#ifdef GNOMON_NCCL_FOUND
#include "kernels/comm/nccl_exchange.h"
#endif

namespace gnomon::test {

// Emulated streams are always empty.
class EmptyStream final : public cuda::StreamMark {
 public:
  void set() override {}
  bool reached() override { return true; }
};

// How engines of so many threads exchange tensors; the number comes to every rank with the
// engine's configuration.
inline constexpr int kThreadsForHost = 1, kThreadsForNccl = 2;

class EmulatedRankMachine final : public EmulatedMachine {
 public:
  explicit EmulatedRankMachine(int threads) : threads_(threads) {}
  std::unique_ptr<cuda::DeviceExchange> connect(Collectives& ranks) override {
#ifdef GNOMON_NCCL_FOUND
    if (threads_ == kThreadsForNccl) {
      return cuda::make_nccl_exchange(ranks, nullptr, std::make_unique<EmptyStream>(), 60);
    }
#endif
    return EmulatedMachine::connect(ranks);
  }

 private:
  int threads_;
};

inline BackendMakers emulated_backends() {
  BackendMakers makers;
  makers.bf16 = [](int threads) {
    return cuda::make_backend(std::make_unique<EmulatedRankMachine>(threads));
  };
  return makers;
}

}  // namespace gnomon::test
