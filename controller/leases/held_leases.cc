#include "controller/leases/held_leases.h"

#include <fmt/format.h>

#include <iterator>
#include <utility>

#include "controller/auth/http_error.h"

namespace gnomon {

HeldLeases::HeldLeases(const RunCache& runs, Metrics& metrics, ReplayQueue& queue,
                       VerifierRegistry& registry)
    : runs_(runs), metrics_(metrics), queue_(queue), registry_(registry) {}

HeldLease* HeldLeases::find(int64_t lease) {
  const auto found = held_.find(lease);
  return found == held_.end() ? nullptr : &found->second;
}

void HeldLeases::add(int64_t lease, HeldLease held) {
  const std::lock_guard lock(mutex_);
  held.deadline = held.since + held.ttl;
  held_[lease] = std::move(held);
  metrics_.update([&](DaemonNumbers& n) { n.leases_active = std::ssize(held_); });
}

void HeldLeases::end(int64_t lease, const std::string& outcome) {
  const std::lock_guard lock(mutex_);
  if (const HeldLease* held = find(lease)) {
    const double now = runs_.steady_now();
    if (held->on_verifier) queue_.lease_ended(held->run, now - held->since, now);
    held_.erase(lease);
  }
  metrics_.update([&](DaemonNumbers& n) {
    n.leases_active = std::ssize(held_);
    n.leases[outcome] += 1;
  });
}

void HeldLeases::forget(int64_t lease) {
  const std::lock_guard lock(mutex_);
  held_.erase(lease);
}

void HeldLeases::set_ttl(int64_t lease, double ttl_seconds) {
  const std::lock_guard lock(mutex_);
  if (HeldLease* held = find(lease)) {
    held->ttl = ttl_seconds;
    held->deadline = runs_.steady_now() + ttl_seconds;
  }
}

HeldLeases::Arrival::Arrival(HeldLeases& leases, int64_t lease, int64_t token,
                             const PrincipalPtr& sender)
    : leases_(leases), lease_(lease) {
  std::string verifier;
  const double now = leases_.runs_.steady_now();
  {
    const std::lock_guard lock(leases_.mutex_);
    HeldLease* held = leases_.find(lease);
    if (!held || held->token != token || !leases_.is_holder(*held, sender)) return;
    counts_ = true;
    another_waits_ = held->waiting++ > 0;
    held->deadline = now + held->ttl;
    if (held->on_verifier) verifier = held->verifier;
  }
  if (!verifier.empty()) leases_.registry_.record_contact(verifier, now);
}

HeldLeases::Arrival::~Arrival() {
  if (!counts_) return;
  const std::lock_guard lock(leases_.mutex_);
  HeldLease* held = leases_.find(lease_);
  if (!held) return;
  --held->waiting;
  held->deadline = leases_.runs_.steady_now() + held->ttl;
}

void HeldLeases::set_holder(int64_t lease, const PrincipalPtr& holder) {
  const std::lock_guard lock(mutex_);
  if (HeldLease* held = find(lease)) held->holder = holder;
}

// The name of a token is its own, and stays when the file is read again.
bool HeldLeases::is_holder(const HeldLease& held, const PrincipalPtr& sender) const {
  return !held.holder || !sender || held.holder->name() == sender->name() ||
         !held.holder->valid(runs_.now());
}

void HeldLeases::check_holder(int64_t lease, const PrincipalPtr& sender) {
  const std::lock_guard lock(mutex_);
  HeldLease* held = find(lease);
  if (!held) return;  // the ledger says what became of it
  if (is_holder(*held, sender)) {
    held->holder = sender;
    return;
  }
  const std::string detail =
      fmt::format("lease {} was given to the token \"{}\", and this request is of \"{}\"", lease,
                  held->holder->name(), sender->name());
  throw HttpError(409, "The lease is another's", detail, "the token that asked for the lease",
                  AuditNote{held->run, "foreign_lease", detail});
}

// A request that waits for the ledger keeps it. What a verifier has under way when it is
// quarantined goes to another one.
bool HeldLeases::is_over(const HeldLease& held, double now) const {
  return held.waiting == 0 &&
         (held.deadline <= now ||
          (held.on_verifier && !queue_.suits(held.run, held.verifier, nullptr)));
}

std::vector<int64_t> HeldLeases::overdue() const {
  const double now = runs_.steady_now();
  const std::lock_guard lock(mutex_);
  std::vector<int64_t> leases;
  for (const auto& [lease, held] : held_) {
    if (is_over(held, now)) leases.push_back(lease);
  }
  return leases;
}

bool HeldLeases::is_overdue(int64_t lease) const {
  const std::lock_guard lock(mutex_);
  const auto found = held_.find(lease);
  return found != held_.end() && is_over(found->second, runs_.steady_now());
}

void HeldLeases::put_off_expiry(int64_t lease) {
  const std::lock_guard lock(mutex_);
  if (HeldLease* held = find(lease)) held->deadline = runs_.steady_now() + held->ttl;
}

}  // namespace gnomon
