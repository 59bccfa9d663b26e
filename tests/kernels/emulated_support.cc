// The tests' memory where kernels are functions of the host.
#include <cstdlib>
#include <cstring>

#include "base/errors.h"
#include "tests/kernels/device_support.h"

namespace gnomon::cuda::test {
namespace {

class ExactMemory final : public Memory {
 public:
  std::byte* take(int64_t bytes, const std::string&) override {
    void* memory = nullptr;
    GNOMON_ASSERT(posix_memalign(&memory, kAlignment, static_cast<size_t>(bytes)) == 0);
    std::memset(memory, 0, static_cast<size_t>(bytes));
    return static_cast<std::byte*>(memory);
  }
  void give_back(std::byte* memory, int64_t) noexcept override { std::free(memory); }
  bool on_host() const override { return true; }
  void read(std::span<const std::byte> from, std::byte* to_host) override { copy(from, to_host); }
  void write(std::span<const std::byte> from_host, std::byte* to) override { copy(from_host, to); }
  void copy(std::span<const std::byte> from, std::byte* to) override {
    std::memcpy(to, from.data(), from.size());
  }
};

}  // namespace

Memory& device_memory() {
  static ExactMemory memory;
  return memory;
}
Stream device_stream() { return nullptr; }

}  // namespace gnomon::cuda::test
