#include "controller/unserved_replays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

namespace gnomon {
namespace {

// Of several, the last that is true of a verifier that speaks.
enum class Reason { kNoVerifier, kLabels, kQuarantine };

int64_t& count_of(Reason reason, UnservedCounts& counts) {
  switch (reason) {
    case Reason::kNoVerifier:
      return counts.no_verifier;
    case Reason::kLabels:
      return counts.labels;
    case Reason::kQuarantine:
      break;
  }
  return counts.quarantine;
}

std::string words(const WorkBoard::Backlog& run, Reason reason) {
  const std::string waiting =
      run.replays == 1 ? "1 replay waits" : fmt::format("{} replays wait", run.replays);
  switch (reason) {
    case Reason::kNoVerifier:
      return waiting + " and no verifier speaks: start gnomon-verifier";
    case Reason::kLabels:
      return fmt::format(
          "{} for a verifier with {}, and none of those that speak has these labels: start one "
          "with them, or change [verifier] requires of the run's policy",
          waiting, fmt::join(run.terms.requirements, ", "));
    case Reason::kQuarantine:
      break;
  }
  return fmt::format(
      "{}, and every verifier that speaks and has what the run requires is in quarantine, since it "
      "computed wrongly ({}): start gnomon-verifier on another device",
      waiting, fmt::join(run.terms.quarantined, ", "));
}

// Why nobody who speaks could do a replay on these terms; nothing when somebody could.
std::optional<Reason> why_unserved(const VerifierRoll& roll, const WorkBoard::Terms& terms,
                                   double now) {
  Reason reason = Reason::kNoVerifier;
  const bool served = roll.any(now, [&](const std::string& name, const VerifierRoll::Entry& entry) {
    const bool met = terms.met_by(entry.labels ? &*entry.labels : nullptr);
    if (met && terms.believe(name)) return true;
    reason = std::max(reason, met ? Reason::kQuarantine : Reason::kLabels);
    return false;
  });
  return served ? std::nullopt : std::optional(reason);
}

}  // namespace

UnservedReplays::Look UnservedReplays::look(const WorkBoard& board, const VerifierRoll& roll,
                                            double now) {
  // Most runs require the same.
  std::map<std::pair<std::vector<std::string>, std::set<std::string>>, std::optional<Reason>>
      reasons;
  Look result;
  std::map<int64_t, Waiting> waiting;
  const std::lock_guard lock(mutex_);
  for (const WorkBoard::Backlog& run : board.backlog()) {
    if (run.terms.trainer_replays) continue;
    const auto [known, fresh] =
        reasons.try_emplace({run.terms.requirements, run.terms.quarantined}, std::nullopt);
    if (fresh) known->second = why_unserved(roll, run.terms, now);
    if (!known->second) continue;
    count_of(*known->second, result.counts) += run.replays;
    const auto before = waiting_.find(run.run);
    Waiting& it = waiting[run.run];
    it = before == waiting_.end() ? Waiting{now} : before->second;
    if (!it.told && now >= it.since + kTellSeconds) {
      it.told = true;
      result.notices.push_back({run.run, words(run, *known->second)});
    }
  }
  waiting_.swap(waiting);
  return result;
}

void UnservedReplays::not_told(int64_t run) {
  const std::lock_guard lock(mutex_);
  if (const auto found = waiting_.find(run); found != waiting_.end()) found->second.told = false;
}

}  // namespace gnomon
