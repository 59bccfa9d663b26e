#include "controller/leases/unschedulable_replays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace gnomon {
namespace {

// In ascending order: the last that is true of some verifier in contact is reported.
enum class Reason { kNoVerifier, kLabels, kFormat, kArm, kQuarantine };

int64_t& count_of(Reason reason, UnschedulableCounts& counts) {
  switch (reason) {
    case Reason::kNoVerifier:
      return counts.no_verifier;
    case Reason::kLabels:
      return counts.labels;
    case Reason::kFormat:
    case Reason::kArm:
      return counts.unsupported;
    case Reason::kQuarantine:
      break;
  }
  return counts.quarantine;
}

std::string or_unsaid(const std::string& text) { return text.empty() ? "(not said)" : text; }

std::string words(const ReplayQueue::SchedulingTerms& terms, const QueuedReplay& replay,
                  int64_t count, Reason reason) {
  const std::string waiting = count == 1 ? "1 replay waits" : fmt::format("{} replays wait", count);
  switch (reason) {
    case Reason::kNoVerifier:
      return waiting + " and no verifier speaks: start gnomon-verifier";
    case Reason::kLabels:
      return fmt::format(
          "{} for a verifier with {}, and none of those that speak has these labels: start one "
          "with them, or change [verifier] requires of the run's policy",
          waiting, fmt::join(terms.requirements, ", "));
    case Reason::kFormat:
      return fmt::format(
          "{} for a verifier that can replay the framework {} and read its checkpoints (format "
          "{}), "
          "and none of those that speak says so: start one that does",
          waiting, or_unsaid(terms.framework), or_unsaid(terms.checkpoint_format));
    case Reason::kArm:
      return fmt::format("{}, and no verifier that speaks can do the arm {}", waiting, replay.arm);
    case Reason::kQuarantine:
      break;
  }
  return fmt::format(
      "{}, and every verifier that speaks and has what the run requires is in quarantine, since it "
      "computed wrongly ({}): start gnomon-verifier on another device",
      waiting, fmt::join(terms.quarantined, ", "));
}

// Why nobody who speaks could do the replay on these terms; nothing when somebody could.
std::optional<Reason> why_unschedulable(const VerifierRegistry& registry,
                                        const ReplayQueue::SchedulingTerms& terms,
                                        const QueuedReplay& replay, double now) {
  Reason reason = Reason::kNoVerifier;
  const bool served =
      registry.any(now, [&](const std::string& name, const VerifierRegistry::Entry& entry) {
        const VerifierProfile* known = entry.known();
        const bool labelled = !known || fits(known->labels, terms.requirements);
        const Abilities can = known ? known->can : Abilities();
        const bool readable = terms.readable_by(can);
        const bool able = replay.can_be_done_by(name, can);
        if (labelled && readable && able && terms.believe(name)) return true;
        reason = std::max(reason, !labelled   ? Reason::kLabels
                                  : !readable ? Reason::kFormat
                                  : !able     ? Reason::kArm
                                              : Reason::kQuarantine);
        return false;
      });
  return served ? std::nullopt : std::optional(reason);
}

}  // namespace

UnschedulableReplays::Look UnschedulableReplays::look(const ReplayQueue& queue,
                                                      const VerifierRegistry& registry,
                                                      double now) {
  // Most runs require the same, and most replays are of one arm.
  using Asked = std::tuple<std::vector<std::string>, std::set<std::string>, std::string,
                           std::string, std::string, std::set<std::string>>;
  std::map<Asked, std::optional<Reason>> reasons;
  Look result;
  std::map<int64_t, Waiting> waiting;
  std::map<ReplayQueue::Key, double> unsupported_since;
  const std::lock_guard lock(mutex_);
  for (const ReplayQueue::Backlog& run : queue.backlog()) {
    const ReplayQueue::SchedulingTerms& terms = run.terms;
    std::map<Reason, std::pair<const QueuedReplay*, int64_t>>
        unschedulable;  // the first one, how many
    for (const QueuedReplay& replay : run.replays) {
      const bool refused = std::ranges::any_of(replay.refused_by, is_trainer);
      if (terms.trainer_replays && !refused && queue.trainer_can(run.run, replay.arm)) continue;
      const auto [known, fresh] =
          reasons.try_emplace({terms.requirements, terms.quarantined, terms.checkpoint_format,
                               terms.framework, replay.arm, replay.refused_by},
                              std::nullopt);
      if (fresh) known->second = why_unschedulable(registry, terms, replay, now);
      if (!known->second) continue;
      const Reason reason = *known->second;
      count_of(reason, result.counts) += 1;
      unschedulable.try_emplace(reason, &replay, 0).first->second.second += 1;
      // Who could do the rest of it speaks, and nobody else is waited for.
      if (reason != Reason::kArm && !terms.trainer_replays) continue;
      const auto before = unsupported_since_.find(ReplayQueue::key(replay));
      const double since = before == unsupported_since_.end() ? now : before->second;
      unsupported_since[ReplayQueue::key(replay)] = since;
      if (now >= since + kGiveUpSeconds) result.to_fail.push_back(replay);
    }
    if (unschedulable.empty()) continue;
    const auto before = waiting_.find(run.run);
    Waiting& it = waiting[run.run];
    it = before == waiting_.end() ? Waiting{now} : before->second;
    if (!it.notified && now >= it.since + kNotifySeconds) {
      it.notified = true;
      const auto& [reason, which] = *unschedulable.rbegin();
      result.notices.push_back({run.run, words(terms, *which.first, which.second, reason)});
    }
  }
  waiting_.swap(waiting);
  unsupported_since_.swap(unsupported_since);
  return result;
}

void UnschedulableReplays::retry_notice(int64_t run) {
  const std::lock_guard lock(mutex_);
  if (const auto found = waiting_.find(run); found != waiting_.end())
    found->second.notified = false;
}

}  // namespace gnomon
