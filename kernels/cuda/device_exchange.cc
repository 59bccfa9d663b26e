#include "kernels/cuda/device_exchange.h"

#include <vector>

#include "kernels/cuda/machine.h"

namespace gnomon::cuda {
namespace {

class HostExchange final : public DeviceExchange {
 public:
  HostExchange(Collectives& ranks, Memory& memory) : ranks_(ranks), memory_(memory) {}

  int rank() const override { return ranks_.rank(); }
  int size() const override { return ranks_.size(); }
  void exchange(const char*, std::span<const std::span<const std::byte>> to,
                std::span<const std::span<std::byte>> from) override {
    const auto count = static_cast<size_t>(size()), me = static_cast<size_t>(rank());
    std::vector<std::vector<std::byte>> sent(count), got(count);
    std::vector<std::span<const std::byte>> host_to(count);
    std::vector<std::span<std::byte>> host_from(count);
    for (size_t other = 0; other < count; ++other) {
      if (other == me) continue;
      sent[other].resize(to[other].size());
      got[other].resize(from[other].size());
      if (!to[other].empty()) memory_.read(to[other], sent[other].data());
      host_to[other] = sent[other];
      host_from[other] = got[other];
    }
    ranks_.exchange(host_to, host_from);
    for (size_t other = 0; other < count; ++other) {
      if (other != me && !got[other].empty()) memory_.write(got[other], from[other].data());
    }
  }

 private:
  Collectives& ranks_;
  Memory& memory_;
};

}  // namespace

std::unique_ptr<DeviceExchange> make_host_exchange(Collectives& ranks, Memory& memory) {
  return std::make_unique<HostExchange>(ranks, memory);
}

std::unique_ptr<DeviceExchange> Machine::connect(Collectives& ranks) {
  return make_host_exchange(ranks, memory());
}

}  // namespace gnomon::cuda
