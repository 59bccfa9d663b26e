#include "controller/unserved_replays.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace gnomon {
namespace {

std::string words(const WorkBoard::Backlog& run, bool anybody) {
  const std::string waiting =
      run.replays == 1 ? "1 replay waits" : fmt::format("{} replays wait", run.replays);
  if (!anybody) return waiting + " and no verifier speaks: start gnomon-verifier";
  return fmt::format(
      "{} for a verifier with {}, and none of those that speak has these labels: start one with "
      "them, or change [verifier] requires of the run's policy",
      waiting, fmt::join(run.terms.requirements, ", "));
}

}  // namespace

UnservedReplays::Look UnservedReplays::look(const WorkBoard& board, const VerifierRoll& roll,
                                            double now) {
  const bool anybody = !roll.empty(now);
  std::map<std::vector<std::string>, bool> served;  // most runs require the same
  Look result;
  std::map<int64_t, Waiting> waiting;
  const std::lock_guard lock(mutex_);
  for (const WorkBoard::Backlog& run : board.backlog()) {
    if (run.terms.trainer_replays) continue;
    const auto [known, fresh] = served.try_emplace(run.terms.requirements, false);
    if (fresh) {
      known->second = roll.any(now, [&](const std::string&, const VerifierRoll::Entry& entry) {
        return !entry.labels || fits(*entry.labels, run.terms.requirements);
      });
    }
    if (known->second) continue;
    (anybody ? result.counts.labels : result.counts.no_verifier) += run.replays;
    const auto before = waiting_.find(run.run);
    Waiting& it = waiting[run.run];
    it = before == waiting_.end() ? Waiting{now} : before->second;
    if (!it.told && now >= it.since + kTellSeconds) {
      it.told = true;
      result.notices.push_back({run.run, words(run, anybody)});
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
