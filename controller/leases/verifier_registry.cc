#include "controller/leases/verifier_registry.h"

#include <algorithm>

namespace gnomon {
namespace {

constexpr double kForgetSeconds = 1;  // thousands may ask at once: not each looks through all

}  // namespace

void VerifierRegistry::record_request(const std::string& name, VerifierProfile profile,
                                      double waits_until, double now) {
  const std::lock_guard lock(mutex_);
  entries_[name] = {std::move(profile), std::max(now, waits_until) + kSilentSeconds};
  forget_silent(now);
}

void VerifierRegistry::record_contact(const std::string& name, double now) {
  const std::lock_guard lock(mutex_);
  entries_[name].counts_until = now + kSilentSeconds;
  forget_silent(now);
}

bool VerifierRegistry::any(
    double now,
    const std::function<bool(const std::string& name, const Entry& entry)>& wanted) const {
  const std::lock_guard lock(mutex_);
  return std::ranges::any_of(entries_, [&](const auto& item) {
    return item.second.counts_until >= now && wanted(item.first, item.second);
  });
}

void VerifierRegistry::forget_silent(double now) {
  if (now < forgotten_at_ + kForgetSeconds) return;
  forgotten_at_ = now;
  std::erase_if(entries_, [&](const auto& item) { return item.second.counts_until < now; });
}

}  // namespace gnomon
