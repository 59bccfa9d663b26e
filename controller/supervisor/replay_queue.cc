#include "controller/supervisor/replay_queue.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "controller/decide/windows.h"

namespace gnomon {
namespace {

constexpr double kHalfLifeSeconds = 600;
constexpr double kNewest = 0.25;  // of a mean, the newest value's part

}  // namespace

void ReplayQueue::set_terms(int64_t id, SchedulingTerms terms) {
  Wakes wakes;
  {
    const std::lock_guard lock(mutex_);
    Run& run = runs_[id];
    if (run.terms == terms) return;
    run.terms = std::move(terms);
    collect_wakes(run, wakes);
  }
  for (const auto& wake : wakes) wake();
}

void ReplayQueue::quarantine(int64_t run, const std::string& name) {
  const std::lock_guard lock(mutex_);
  runs_[run].terms.quarantined.insert(name);
}

bool ReplayQueue::suits(int64_t run, const std::string& name,
                        const VerifierProfile* profile) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run);
  if (found == runs_.end()) return true;
  const SchedulingTerms& terms = found->second.terms;
  return terms.believe(name) && (!profile || terms.met_by(profile->labels, profile->can));
}

void ReplayQueue::record_trainer(int64_t run, const Abilities& can, double counts_until) {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run);
  if (found == runs_.end()) return;
  found->second.trainer = can;
  found->second.trainer_counts_until = counts_until;
}

bool ReplayQueue::trainer_can(int64_t run, const std::string& arm) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run);
  return found == runs_.end() || found->second.trainer.can_replay(arm);
}

bool ReplayQueue::trainer_takes(int64_t run, const std::string& arm, double now) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run);
  if (found == runs_.end()) return false;
  const Run& known = found->second;
  return known.terms.trainer_replays && known.trainer_counts_until >= now &&
         known.trainer.can_replay(arm);
}

void ReplayQueue::add(const QueuedReplay& entry) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    Run& run = runs_[entry.run];
    const Order order{-entry.priority, entry.ordered_at, entry.replay};
    if (!run.queue.emplace(order, entry).second) return;
    with_work_.insert(entry.run);
    wake = pop_waiter(run, entry);
  }
  if (wake) wake();
}

template <typename Chosen>
void ReplayQueue::drop(int64_t run, const Chosen& chosen) {
  const std::lock_guard lock(mutex_);
  auto& queue = runs_[run].queue;
  std::erase_if(queue, [&](const auto& item) { return chosen(item.second); });
  if (queue.empty()) with_work_.erase(run);
}

void ReplayQueue::remove(int64_t run, int64_t replay) {
  drop(run, [&](const QueuedReplay& entry) { return entry.replay == replay; });
}

void ReplayQueue::forget_run(int64_t run) {
  const std::lock_guard lock(mutex_);
  runs_.erase(run);
  with_work_.erase(run);
}

void ReplayQueue::cancel(int64_t run, int64_t window) {
  drop(run, [&](const QueuedReplay& entry) { return entry.window == window; });
}

int64_t ReplayQueue::queued() const {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const int64_t run : with_work_) count += std::ssize(runs_.at(run).queue);
  return count;
}

std::vector<ReplayQueue::Backlog> ReplayQueue::backlog() const {
  const std::lock_guard lock(mutex_);
  std::vector<Backlog> all;
  for (const int64_t id : with_work_) {
    const Run& run = runs_.at(id);
    Backlog backlog{id, {}, run.terms};
    for (const auto& [order, entry] : run.queue) {
      if (!entry.on_trainer) backlog.replays.push_back(entry);
    }
    if (!backlog.replays.empty()) all.push_back(std::move(backlog));
  }
  return all;
}

std::vector<QueuedReplay> ReplayQueue::for_trainers() const {
  const std::lock_guard lock(mutex_);
  std::vector<QueuedReplay> all;
  for (const int64_t id : with_work_) {
    for (const auto& [order, entry] : runs_.at(id).queue) {
      if (entry.on_trainer) all.push_back(entry);
    }
  }
  return all;
}

bool ReplayQueue::of_case(int64_t priority) { return priority >= decide::kPriorityAttribution; }

void ReplayQueue::lease_began(int64_t run, bool of_case) {
  const std::lock_guard lock(mutex_);
  Run& it = runs_[run];
  ++it.leases;
  it.cases_in_row = of_case ? it.cases_in_row + 1 : 0;
}

void ReplayQueue::lease_ended(int64_t run, double seconds, double now) {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run);
  if (found == runs_.end() || found->second.leases == 0) return;  // forgotten meanwhile
  Run& it = found->second;
  --it.leases;
  it.lease_seconds += kNewest * (seconds - it.lease_seconds);
  it.used = it.used * std::exp2((it.used_at - now) / kHalfLifeSeconds) + seconds;
  it.used_at = now;
}

void ReplayQueue::restore_turn(int64_t run, int64_t cases_in_row) {
  const std::lock_guard lock(mutex_);
  runs_[run].cases_in_row = cases_in_row;
}

void ReplayQueue::lease_undone(int64_t run) {
  const std::lock_guard lock(mutex_);
  --runs_[run].leases;
}

std::vector<std::pair<ReplayQueue::Run::Place, ReplayQueue::Run::Place>>
ReplayQueue::Run::stretches() const {
  constexpr double kOldest = -std::numeric_limits<double>::infinity();
  constexpr int64_t kFirst = std::numeric_limits<int64_t>::min();
  const Place shadows = queue.lower_bound({-decide::kPriorityCalled, kOldest, kFirst});
  const Place others = queue.lower_bound({-decide::kPriorityShadow + 1, kOldest, kFirst});
  const bool both = shadows != queue.begin() && shadows != others;
  if (!both || cases_in_row < kCasesToAShadow) return {{queue.begin(), queue.end()}};
  return {{shadows, others}, {queue.begin(), shadows}, {others, queue.end()}};
}

double ReplayQueue::used_for_share(const Run& run, double now) {
  const double lately = run.used * std::exp2((run.used_at - now) / kHalfLifeSeconds);
  const double under_way = static_cast<double>(run.leases) * run.lease_seconds;
  return (lately + under_way) / run.terms.share;
}

bool ReplayQueue::may_enter(const Worker& worker, int64_t id, const Run& run) {
  if (!run.terms.believe(worker.name)) return false;
  // A trainer is what its own run runs on.
  if (worker.trainer_of != 0) return worker.trainer_of == id;
  return run.terms.met_by(worker.labels, worker.can);
}

// A trainer that does not verify inline is there for what only it can do.
bool ReplayQueue::may_try(const Worker& worker, const Run& run, const QueuedReplay& entry) {
  const bool fits =
      worker.trainer_of == 0 ? !entry.on_trainer : entry.on_trainer || run.terms.trainer_replays;
  return fits && entry.can_be_done_by(worker.name, worker.can) &&
         !worker.declined.contains(key(entry));
}

// The queues of the runs are in order each, so the next turn is always the next of one of them.
std::vector<QueuedReplay> ReplayQueue::candidates(const Worker& worker, size_t most,
                                                  double now) const {
  const std::lock_guard lock(mutex_);
  struct Place {
    const Run* run;
    double used;
    std::vector<std::pair<Run::Place, Run::Place>> left;  // of the run's queue; none is empty
    Run::Place next;
    bool step() {
      if (++next != left.front().second) return true;
      left.erase(left.begin());
      if (left.empty()) return false;
      next = left.front().first;
      return true;
    }
    auto order() const {
      const QueuedReplay& entry = next->second;
      return std::tuple(used, -entry.priority, entry.ordered_at, entry.run, entry.replay);
    }
    bool operator<(const Place& other) const { return order() > other.order(); }
  };
  std::priority_queue<Place> places;
  for (const int64_t id : with_work_) {
    const Run& run = runs_.at(id);
    if (!may_enter(worker, id, run)) continue;
    auto stretches = run.stretches();
    std::erase_if(stretches, [](const auto& one) { return one.first == one.second; });
    const Run::Place first = stretches.front().first;
    places.push({&run, used_for_share(run, now), std::move(stretches), first});
  }
  std::vector<QueuedReplay> found;
  while (!places.empty() && found.size() < most) {
    Place place = places.top();
    places.pop();
    if (may_try(worker, *place.run, place.next->second)) found.push_back(place.next->second);
    if (place.step()) places.push(std::move(place));
  }
  return found;
}

bool ReplayQueue::any_for(const Worker& worker) const {
  return std::ranges::any_of(with_work_, [&](int64_t id) {
    const Run& run = runs_.at(id);
    return may_enter(worker, id, run) && std::ranges::any_of(run.queue, [&](const auto& item) {
             return may_try(worker, run, item.second);
           });
  });
}

uint64_t ReplayQueue::wait(const Worker& worker, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  if (any_for(worker)) return 0;
  waiting_.emplace(next_ticket_, Waiting{worker, std::move(wake)});
  return next_ticket_++;
}

bool ReplayQueue::forget(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  return waiting_.erase(ticket) > 0;
}

// A verifier before a trainer, which would rather train; whoever has waited longest.
std::function<void()> ReplayQueue::pop_waiter(const Run& run, const QueuedReplay& entry) {
  auto chosen = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const Worker& worker = it->second.worker;
    if (!may_try(worker, run, entry) || !may_enter(worker, entry.run, run)) continue;
    if (chosen == waiting_.end() || worker.trainer_of == 0) chosen = it;
    if (worker.trainer_of == 0) break;
  }
  if (chosen == waiting_.end()) return {};
  std::function<void()> wake = std::move(chosen->second.wake);
  waiting_.erase(chosen);
  return wake;
}

void ReplayQueue::collect_wakes(const Run& run, Wakes& wakes) {
  for (const auto& [order, entry] : run.queue) {
    if (waiting_.empty()) return;
    if (auto wake = pop_waiter(run, entry)) wakes.push_back(std::move(wake));
  }
}

// Thousands of runs may want what none of thousands of workers has: that is found out once for each
// list of requirements.
void ReplayQueue::wake_matching() {
  Wakes wakes;
  {
    const std::lock_guard lock(mutex_);
    if (with_work_.empty() || waiting_.empty()) return;
    std::set<int64_t> trainers;
    for (const auto& [ticket, waiting] : waiting_) trainers.insert(waiting.worker.trainer_of);
    std::map<std::vector<std::string>, bool> any_fits;
    for (const int64_t id : with_work_) {
      const Run& run = runs_.at(id);
      const auto [known, fresh] = any_fits.try_emplace(run.terms.requirements, false);
      if (fresh) {
        known->second = std::ranges::any_of(waiting_, [&](const auto& item) {
          const Worker& worker = item.second.worker;
          return worker.trainer_of == 0 && fits(worker.labels, run.terms.requirements);
        });
      }
      if (known->second || trainers.contains(id)) collect_wakes(run, wakes);
    }
  }
  for (const auto& wake : wakes) wake();
}

void ReplayQueue::wake_all() {
  std::map<uint64_t, Waiting> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(waiting_);
  }
  for (auto& [ticket, waiting] : all) waiting.wake();
}

}  // namespace gnomon
