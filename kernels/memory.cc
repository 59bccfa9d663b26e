#include "kernels/memory.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>

#include "base/errors.h"
#include "fmt/format.h"

namespace gnomon {
namespace {

// What the kernel says can be had without swapping; the largest value where it does not say.
int64_t available_memory_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  std::string unit;
  while (meminfo >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(meminfo, unit);
  }
  return std::numeric_limits<int64_t>::max();
}

class Done final : public CopyOut {
 public:
  void wait() override {}
};

class HostMemory final : public Memory {
 public:
  // Pages are touched, so that running out of memory is said here.
  std::byte* allocate(int64_t bytes, const std::string& purpose) override {
    const int64_t available = available_memory_bytes();
    if (bytes > available) {
      throw Error(fmt::format("{} needs {} bytes and {} are available", purpose, bytes, available));
    }
    const auto size = static_cast<size_t>(bytes);
    void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw Error(fmt::format("{} needs {} bytes and the system refused: {}", purpose, bytes,
                              std::strerror(errno)));
    }
    madvise(memory, size, MADV_HUGEPAGE);
    std::memset(memory, 0, size);
    return static_cast<std::byte*>(memory);
  }
  void give_back(std::byte* memory, int64_t bytes) noexcept override {
    munmap(memory, static_cast<size_t>(bytes));
  }
  bool on_host() const override { return true; }

  void read(std::span<const std::byte> from, std::byte* to_host) override { copy(from, to_host); }
  void write(std::span<const std::byte> from_host, std::byte* to) override { copy(from_host, to); }
  void copy(std::span<const std::byte> from, std::byte* to) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }

  std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) override {
    return allocate(bytes, purpose);
  }
  void give_back_host_room(std::byte* room, int64_t bytes) noexcept override {
    give_back(room, bytes);
  }
  std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) copy(piece.from, piece.to);
    return std::make_unique<Done>();
  }
  void settle() override {}
};

}  // namespace

Memory& host_memory() {
  static HostMemory memory;
  return memory;
}

}  // namespace gnomon
