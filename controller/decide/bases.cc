#include "controller/decide/bases.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_rivals.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr size_t kCheckpointsNewest = 3;  // kept for incidents
constexpr size_t kCheckpointsMax = 64;
constexpr size_t kQuietEndsMax = 64;
constexpr size_t kOlderVerifiedMax = 2;  // beside the newest, for a rollback that is refused
constexpr size_t kRollbackCountsMax = 64;
constexpr size_t kRefusedBasesMax = 64;

// True when the window's end may be gone back to.
bool is_clean(const Core& core, const WindowState& window) {
  const GapSettings settings = gap_settings(core.policy);
  double limit = tolerated_percent(core);
  if (window.kind == "long")
    limit *=
        long_gap_settings(core.policy, window.steps).ceiling_percent / settings.ceiling_percent;
  if (!(*window.measured->d_percent <= limit)) return false;
  return window.kind == "long" || is_rival(settings.kind) ||
         gap_total(core.s.watch.gap, settings) <= risen_evidence(core.policy);
}

bool refused_before(const State& s, const std::string& uri) {
  return std::find(s.refused_bases.begin(), s.refused_bases.end(), uri) != s.refused_bases.end();
}

}  // namespace

void mark_verified(Core& core, const KnownCheckpoint& checkpoint) {
  State& s = core.s;
  if (s.last_verified && s.last_verified->step >= checkpoint.step) return;
  if (s.last_verified) s.older_verified.push_back(*s.last_verified);
  if (s.older_verified.size() > kOlderVerifiedMax) s.older_verified.erase(s.older_verified.begin());
  s.last_verified = checkpoint;
  if (checkpoint.step > s.watch.dirty_since) s.watch.dirty_since = -1;
  core.effects.emplace_back(MarkVerified{checkpoint.attempt, checkpoint.step, checkpoint.uri});
}

void add_quiet_end(State& s, int64_t start_step, KnownCheckpoint end) {
  if (s.quiet_ends.size() >= kQuietEndsMax) s.quiet_ends.erase(s.quiet_ends.begin());
  s.quiet_ends.push_back({start_step, std::move(end)});
}

void add_quiet_end(Core& core, const WindowState& window) {
  State& s = core.s;
  if (!is_clean(core, window)) {
    if (s.watch.dirty_since < 0) s.watch.dirty_since = window.start.step;
    return core.explain(fmt::format("{} is no base to go back to.", window_name(window)));
  }
  add_quiet_end(s, window.start.step,
                {window.attempt, window.end_step(), window.end_uri, window.plan_version});
}

void settle_verified(Core& core) {
  State& s = core.s;
  int64_t doubtful = INT64_MAX;  // the first step from which the run is in doubt
  for (const WindowState& window : s.windows) {
    const bool waits = (window.shadow_pending || window.confirm_pending) && window.kind != "long";
    if (waits || window.deferred || window.unsettled || of_case(s, window.id))
      doubtful = std::min(doubtful, window.start.step);
  }
  if (s.suspicion) doubtful = std::min(doubtful, s.suspicion->start.step);
  std::sort(s.quiet_ends.begin(), s.quiet_ends.end(),
            [](const QuietEnd& a, const QuietEnd& b) { return a.end.step < b.end.step; });
  size_t settled = 0;
  while (settled < s.quiet_ends.size() && s.quiet_ends[settled].end.step <= doubtful) {
    mark_verified(core, s.quiet_ends[settled].end);
    settled += 1;
  }
  s.quiet_ends.erase(s.quiet_ends.begin(), s.quiet_ends.begin() + static_cast<int64_t>(settled));
}

void protect(Core& core) {
  State& s = core.s;
  // A rollback's target starts the first window of the attempt that the rollback begins.
  const auto may_be_a_base = [&](const KnownCheckpoint& known) {
    if (s.last_verified && known.uri == s.last_verified->uri) return true;
    for (const KnownCheckpoint& older : s.older_verified) {
      if (known.uri == older.uri) return true;
    }
    if (s.recovery && s.recovery->attempt == 0 && known.step == s.recovery->to_step) return true;
    if (known.step == s.watch.long_start) return true;
    const bool ends_count = core.policy.ladder.from == "evidence";
    if (ends_count && evidence_may_rise_after(s, known.step)) return true;
    return std::any_of(s.windows.begin(), s.windows.end(), [&](const WindowState& window) {
      return window.start.uri == known.uri || (ends_count && window.end_uri == known.uri);
    });
  };
  const auto needed_later = [&](size_t i) {
    return s.checkpoints[i].step >= s.next_start ||
           i + kCheckpointsNewest >= s.checkpoints.size() || may_be_a_base(s.checkpoints[i]);
  };
  std::vector<KnownCheckpoint> kept;
  for (size_t i = 0; i < s.checkpoints.size(); ++i) {
    if (needed_later(i)) kept.push_back(s.checkpoints[i]);
  }
  // A window may be longer than what is kept: where the next one begins stays.
  const auto start = std::ranges::find_if(
      kept, [&](const KnownCheckpoint& known) { return known.step >= s.next_start; });
  const int64_t start_step = start != kept.end() ? start->step : -1;
  while (kept.size() > kCheckpointsMax) {
    const auto least = std::ranges::find_if(kept, [&](const KnownCheckpoint& known) {
      return known.step != start_step && !may_be_a_base(known);
    });
    kept.erase(least != kept.end() ? least : kept.begin());
  }
  s.checkpoints = std::move(kept);
  std::vector<std::string> uris;
  const auto add = [&](const std::string& uri) {
    if (!uri.empty()) uris.push_back(uri);
  };
  for (const KnownCheckpoint& known : s.checkpoints) add(known.uri);
  if (s.last_verified) add(s.last_verified->uri);
  for (const KnownCheckpoint& older : s.older_verified) add(older.uri);
  for (const QuietEnd& quiet : s.quiet_ends) add(quiet.end.uri);
  for (const WindowState& window : s.windows) {
    add(window.start.uri);
    add(window.end_uri);
  }
  if (s.suspicion) add(s.suspicion->start.uri);
  if (s.directive) add(s.directive->checkpoint_uri);
  std::sort(uris.begin(), uris.end());
  uris.erase(std::unique(uris.begin(), uris.end()), uris.end());
  if (uris == s.protected_uris) return;
  s.protected_uris = uris;
  core.effects.emplace_back(ProtectCheckpoints{std::move(uris)});
}

std::optional<KnownCheckpoint> good_checkpoint(const State& s, int64_t newest) {
  if (!s.last_verified) return std::nullopt;
  std::optional<KnownCheckpoint> best;
  const auto consider = [&](const KnownCheckpoint& known) {
    if (known.step > newest || refused_before(s, known.uri)) return;
    if (!best || known.step > best->step) best = known;
  };
  consider(*s.last_verified);
  for (const KnownCheckpoint& known : s.older_verified) consider(known);
  // What lies before a verified checkpoint was verified as well.
  for (const KnownCheckpoint& known : s.checkpoints) {
    if (known.step < s.last_verified->step) consider(known);
  }
  return best;
}

std::optional<KnownCheckpoint> oldest_good_checkpoint(const State& s) {
  std::optional<KnownCheckpoint> oldest = s.last_verified;
  for (const KnownCheckpoint& known : s.older_verified) {
    if (!oldest || known.step < oldest->step) oldest = known;
  }
  return oldest && !refused_before(s, oldest->uri) ? oldest : std::nullopt;
}

int64_t rollbacks_to(const State& s, int64_t step) {
  for (const RollbackCount& known : s.rollbacks) {
    if (known.step == step) return known.count;
  }
  return 0;
}

void count_rollback(State& s, int64_t step) {
  for (RollbackCount& known : s.rollbacks) {
    if (known.step != step) continue;
    known.count += 1;
    return;
  }
  if (s.rollbacks.size() >= kRollbackCountsMax) s.rollbacks.erase(s.rollbacks.begin());
  s.rollbacks.push_back({step, 1});
}

void remember_refused(State& s, const PendingDirective& refused) {
  for (RollbackCount& known : s.rollbacks) {
    if (known.step == refused.to_step && known.count > 0) known.count -= 1;
  }
  if (refused_before(s, refused.checkpoint_uri)) return;
  if (s.refused_bases.size() >= kRefusedBasesMax) s.refused_bases.erase(s.refused_bases.begin());
  s.refused_bases.push_back(refused.checkpoint_uri);
}

}  // namespace gnomon::decide
