#include "lab/simulate/verifier_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "base/errors.h"

namespace gnomon::simulate {
namespace {

constexpr uint64_t kPoolStream = 50;

bool among(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

VerifierPool::VerifierPool(const RunModel& model, double lease_ttl_seconds, uint64_t seed)
    : model_(model), lease_ttl_seconds_(lease_ttl_seconds), draw_(seed, kPoolStream) {
  for (int i = 0; i < model.verifiers; ++i) {
    verifiers_.push_back({fmt::format("verifier-{}", i + 1), false, 0, std::nullopt, 0});
  }
}

const VerifierPool::Verifier* VerifierPool::pick(const decide::OrderReplay& order,
                                                 const std::vector<std::string>& quarantined,
                                                 double now) const {
  const auto able = [&](const Verifier& one) { return !among(quarantined, one.name); };
  const bool others = std::ranges::any_of(verifiers_, [&](const Verifier& one) {
    return able(one) && !decide::avoids(order.avoid, one.name);
  });
  for (const Verifier& one : verifiers_) {
    if (one.work || one.absent_until > now || !able(one)) continue;
    if (others && decide::avoids(order.avoid, one.name)) continue;
    return &one;
  }
  return nullptr;
}

bool VerifierPool::may_start(const decide::OrderReplay& order,
                             const std::vector<std::string>& quarantined, double now) const {
  return pick(order, quarantined, now) != nullptr;
}

void VerifierPool::start(Task task, const std::vector<std::string>& quarantined, double now,
                         double seconds) {
  const Verifier* found = pick(task.order, quarantined, now);
  GNOMON_ASSERT(found != nullptr);
  Verifier& one = verifiers_[static_cast<size_t>(found - verifiers_.data())];
  task.leases += 1;
  Done done;
  done.task = std::move(task);
  done.verifier = one.name;
  done.seconds = seconds / model_.verifier_speed;
  done.died = model_.verifier_dies > 0 && draw_.uniform() < model_.verifier_dies;
  if (done.died) {
    done.seconds *= draw_.uniform();
    one.absent_until = now + done.seconds + model_.verifier_back_seconds;
    done.seconds += lease_ttl_seconds_;
  }
  if (model_.verifier_lies > 0 && draw_.uniform() < model_.verifier_lies) one.lies = true;
  done.lies = one.lies;
  one.done_at = now + done.seconds;
  one.work = std::move(done);
}

std::optional<VerifierPool::Done> VerifierPool::pop_done(double now) {
  Verifier* first = nullptr;
  for (Verifier& one : verifiers_) {
    if (!one.work || one.done_at > now) continue;
    if (first == nullptr || one.done_at < first->done_at) first = &one;
  }
  if (first == nullptr) return std::nullopt;
  std::optional<Done> done = std::move(first->work);
  first->work.reset();
  return done;
}

double VerifierPool::next_change(double now) const {
  double next = std::numeric_limits<double>::infinity();
  for (const Verifier& one : verifiers_) {
    if (one.work) next = std::min(next, one.done_at);
    if (!one.work && one.absent_until > now) next = std::min(next, one.absent_until);
  }
  return next;
}

bool VerifierPool::idle() const {
  return std::ranges::none_of(verifiers_, [](const Verifier& one) { return one.work.has_value(); });
}

}  // namespace gnomon::simulate
