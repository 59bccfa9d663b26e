#include "controller/api/byte_budget.h"

namespace gnomon {

void ByteBudget::Share::set_holder(const std::string& holder) {
  give_back();
  holder_ = holder;
}

bool ByteBudget::Share::resize(size_t bytes) {
  const size_t counted = bytes > kFree ? bytes - kFree : 0;
  if (counted != counted_ && !budget_.change(holder_, counted_, counted)) return false;
  counted_ = counted;
  return true;
}

size_t ByteBudget::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

bool ByteBudget::change(const std::string& holder, size_t from, size_t to) {
  const std::lock_guard lock(mutex_);
  const size_t held = held_ - from + to;
  if (to > from && held > max_) return false;
  if (!holder.empty()) {
    size_t& of_holder = holders_[holder];
    if (to > from && of_holder - from + to > max_ / 2) {
      if (of_holder == 0) holders_.erase(holder);
      return false;
    }
    of_holder = of_holder - from + to;
    if (of_holder == 0) holders_.erase(holder);
  }
  held_ = held;
  return true;
}

}  // namespace gnomon
