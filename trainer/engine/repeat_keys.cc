#include "trainer/engine/repeat_keys.h"

#include <algorithm>

namespace gnomon {

uint64_t RepeatKeys::key(const PassPlan& pass, uint64_t histories, bool accumulate,
                         BackendBase& backend) {
  if (pass.observer != nullptr) return 0;
  const auto is_it = [&](const Kind& kind) {
    return kind.histories == histories && kind.fakequant == pass.fakequant &&
           kind.sites == *pass.sites;
  };
  auto found = std::ranges::find_if(kinds_, is_it);
  if (found == kinds_.end()) {
    if (kinds_.size() == kKindsMost) {
      backend.forget_repeats();
      forgotten_ += kinds_.size();
      kinds_.clear();
    }
    found = kinds_.insert(kinds_.end(), {*pass.sites, pass.fakequant, histories});
  }
  const auto kind = forgotten_ + static_cast<uint64_t>(found - kinds_.begin());
  return 2 * kind + (accumulate ? 2 : 1);
}

}  // namespace gnomon
