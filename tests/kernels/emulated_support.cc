// The tests' memory where kernels are functions of the host.
#include <cstdlib>
#include <cstring>
#include <memory>

#include "base/errors.h"
#include "tests/kernels/device_support.h"

namespace gnomon::cuda::test {
namespace {

class ExactMemory final : public Memory {
 public:
  std::byte* allocate(int64_t bytes, const std::string&) override {
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
  // As the host's own does.
  std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) override {
    return host_memory().allocate_host_room(bytes, purpose);
  }
  void give_back_host_room(std::byte* room, int64_t bytes) noexcept override {
    host_memory().give_back_host_room(room, bytes);
  }
  std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) override {
    return host_memory().start_copy_out(pieces);
  }
  void settle() override {}
};

}  // namespace

Memory& device_memory() {
  static ExactMemory memory;
  return memory;
}
Stream device_stream() { return nullptr; }

}  // namespace gnomon::cuda::test
