#include "kernels/tensor.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "base/errors.h"
#include "fmt/format.h"

namespace gnomon {
namespace {

constexpr int64_t kAlignment = 64;

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

}  // namespace

Arena::~Arena() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(capacity_));
}

void Arena::commit() {
  GNOMON_ASSERT(counting_);
  counting_ = false;
  capacity_ = std::exchange(used_, 0);
  if (capacity_ == 0) return;
  int64_t available = available_memory_bytes();
  if (capacity_ > available) {
    throw Error(
        fmt::format("arena '{}' needs {} bytes and {} are available", name_, capacity_, available));
  }
  auto size = static_cast<size_t>(capacity_);
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error(fmt::format("arena '{}' needs {} bytes and the system refused: {}", name_,
                            capacity_, std::strerror(errno)));
  }
  madvise(memory, size, MADV_HUGEPAGE);
  std::memset(memory, 0, size);
  memory_ = static_cast<std::byte*>(memory);
}

void* Arena::take_bytes(int64_t bytes) {
  GNOMON_ASSERT(bytes >= 0);
  int64_t offset = used_;
  int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  used_ += rounded;
  if (counting_) return nullptr;
  GNOMON_ASSERT(used_ <= capacity_);
  return memory_ + offset;
}

}  // namespace gnomon
