#include "controller/work_board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "protocol/site_glob.h"

namespace gnomon {
namespace {

constexpr double kHalfLifeSeconds = 600;
constexpr double kNewest = 0.25;  // of a mean, the newest value's part

}  // namespace

bool fits(const Labels& labels, const std::vector<std::string>& requirements) {
  return std::ranges::all_of(requirements, [&](const std::string& requirement) {
    const size_t equals = requirement.find('=');
    const auto label = labels.find(requirement.substr(0, equals));
    return simple_glob_matches(requirement.substr(equals + 1),
                               label == labels.end() ? std::string() : label->second);
  });
}

void check_requirement(const std::string& requirement) {
  const size_t equals = requirement.find('=');
  if (equals == 0 || equals == std::string::npos ||
      requirement.find_first_of("{}") != std::string::npos) {
    throw Error(
        fmt::format("\"{}\" is no requirement of a verifier; accepted: KEY=GLOB, like "
                    "backend=cuda or device=NVIDIA*",
                    requirement));
  }
}

void WorkBoard::set_terms(int64_t run, Terms terms) {
  const std::lock_guard lock(mutex_);
  runs_[run].terms = std::move(terms);
}

void WorkBoard::add(const QueuedReplay& entry) {
  std::function<void()> wake;
  {
    const std::lock_guard lock(mutex_);
    runs_[entry.run].queue.emplace(std::tuple(-entry.priority, entry.ordered_at, entry.replay),
                                   entry);
    with_work_.insert(entry.run);
    wake = take_waiter(entry);
  }
  if (wake) wake();
}

void WorkBoard::remove(int64_t run, int64_t replay) {
  const std::lock_guard lock(mutex_);
  auto& queue = runs_[run].queue;
  std::erase_if(queue, [&](const auto& item) { return item.second.replay == replay; });
  if (queue.empty()) with_work_.erase(run);
}

void WorkBoard::cancel(int64_t run, int64_t window) {
  const std::lock_guard lock(mutex_);
  auto& queue = runs_[run].queue;
  std::erase_if(queue, [&](const auto& item) { return item.second.window == window; });
  if (queue.empty()) with_work_.erase(run);
}

int64_t WorkBoard::queued() const {
  const std::lock_guard lock(mutex_);
  int64_t count = 0;
  for (const int64_t run : with_work_) count += std::ssize(runs_.at(run).queue);
  return count;
}

void WorkBoard::lease_began(int64_t run) {
  const std::lock_guard lock(mutex_);
  ++runs_[run].leases;
}

void WorkBoard::lease_ended(int64_t run, double seconds, double now) {
  const std::lock_guard lock(mutex_);
  Run& it = runs_[run];
  --it.leases;
  it.lease_seconds += kNewest * (seconds - it.lease_seconds);
  it.used = used_lately(it, now) + seconds;
  it.used_at = now;
}

double WorkBoard::used_lately(const Run& run, double now) {
  return run.used * std::exp2((run.used_at - now) / kHalfLifeSeconds);
}

bool WorkBoard::may_try(const Worker& worker, const Run& run, const QueuedReplay& entry) const {
  if (worker.trainer_of != 0 && worker.trainer_of != entry.run) return false;
  if (worker.trainer_of == 0 && entry.on_trainer) return false;
  if (worker.declined.contains(key(entry))) return false;
  // A trainer is what its own run runs on.
  return worker.trainer_of != 0 || fits(worker.labels, run.terms.requirements);
}

std::vector<QueuedReplay> WorkBoard::candidates(const Worker& worker, size_t most,
                                                double now) const {
  const std::lock_guard lock(mutex_);
  struct Turn {
    double used;
    QueuedReplay entry;
  };
  std::vector<Turn> turns;
  for (const int64_t id : with_work_) {
    const Run& run = runs_.at(id);
    const double under_way = static_cast<double>(run.leases) * run.lease_seconds;
    const double used = (used_lately(run, now) + under_way) / run.terms.share;
    for (const auto& [order, entry] : run.queue) {
      if (!may_try(worker, run, entry)) continue;
      turns.push_back({used, entry});
    }
  }
  const size_t count = std::min(most, turns.size());
  const auto order = [](const Turn& turn) {
    return std::tuple(turn.used, -turn.entry.priority, turn.entry.ordered_at, turn.entry.run,
                      turn.entry.replay);
  };
  std::ranges::partial_sort(turns, turns.begin() + static_cast<std::ptrdiff_t>(count), {}, order);
  std::vector<QueuedReplay> found;
  for (size_t i = 0; i < count; ++i) found.push_back(turns[i].entry);
  return found;
}

bool WorkBoard::any_for(const Worker& worker) const {
  return std::ranges::any_of(with_work_, [&](int64_t id) {
    const Run& run = runs_.at(id);
    return std::ranges::any_of(run.queue,
                               [&](const auto& item) { return may_try(worker, run, item.second); });
  });
}

uint64_t WorkBoard::wait(const Worker& worker, std::function<void()> wake) {
  const std::lock_guard lock(mutex_);
  if (any_for(worker)) return 0;
  waiting_.emplace(next_ticket_, Waiting{worker, std::move(wake)});
  return next_ticket_++;
}

void WorkBoard::forget(uint64_t ticket) {
  const std::lock_guard lock(mutex_);
  waiting_.erase(ticket);
}

// A verifier before a trainer, which would rather train; whoever has waited longest.
std::function<void()> WorkBoard::take_waiter(const QueuedReplay& entry) {
  const Run& run = runs_.at(entry.run);
  auto chosen = waiting_.end();
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    if (!may_try(it->second.worker, run, entry)) continue;
    if (chosen == waiting_.end() || it->second.worker.trainer_of == 0) chosen = it;
    if (chosen->second.worker.trainer_of == 0) break;
  }
  if (chosen == waiting_.end()) return {};
  std::function<void()> wake = std::move(chosen->second.wake);
  waiting_.erase(chosen);
  return wake;
}

void WorkBoard::stir() {
  std::vector<std::function<void()>> wakes;
  {
    const std::lock_guard lock(mutex_);
    for (const int64_t run : with_work_) {
      for (const auto& [order, entry] : runs_.at(run).queue) {
        if (waiting_.empty()) break;
        if (auto wake = take_waiter(entry)) wakes.push_back(std::move(wake));
      }
    }
  }
  for (const auto& wake : wakes) wake();
}

void WorkBoard::wake_all() {
  std::map<uint64_t, Waiting> all;
  {
    const std::lock_guard lock(mutex_);
    all.swap(waiting_);
  }
  for (auto& [ticket, waiting] : all) waiting.wake();
}

}  // namespace gnomon
