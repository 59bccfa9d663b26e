#include "kernels/tensor.h"

#include <utility>

#include "base/errors.h"
#include "fmt/format.h"

namespace gnomon {
namespace {

constexpr int64_t kAlignment = 64;  // bytes that every piece is aligned to

}  // namespace

Arena::~Arena() {
  if (memory_ != nullptr) source_.give_back(memory_, capacity_);
}

void Arena::commit() {
  GNOMON_ASSERT(counting_);
  counting_ = false;
  capacity_ = std::exchange(used_, 0);
  if (capacity_ > 0) memory_ = source_.allocate(capacity_, fmt::format("arena '{}'", name_));
}

void* Arena::allocate_bytes(int64_t bytes) {
  GNOMON_ASSERT(bytes >= 0);
  int64_t offset = used_;
  int64_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  used_ += rounded;
  if (counting_) return nullptr;
  GNOMON_ASSERT(used_ <= capacity_);
  return memory_ + offset;
}

}  // namespace gnomon
