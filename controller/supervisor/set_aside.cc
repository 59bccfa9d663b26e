#include "controller/supervisor/set_aside.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <utility>

#include "base/hash.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_deletion.h"

namespace gnomon {
namespace {

uint64_t hash_of_what_is_written(Connection& connection, const RunRow& run) {
  std::string all = run.policy + '\n' + run.registration + '\n' + std::string(run.state);
  if (const std::optional<ledger::StateRow> saved = ledger::load_state(connection, run.id)) {
    all += fmt::format("\n{}\n{}", saved->seq, saved->body);
  }
  return hash64(all.data(), all.size());
}

// Half of its rows may be gone.
SetAsideRuns::Read of_deleted(Connection& connection, const RunRow& run) {
  SetAsideRuns::Read read;
  try {
    read.policy = decide::Policy::parse(run.policy, "policy");
    if (const std::optional<ledger::StateRow> saved = ledger::load_state(connection, run.id)) {
      read.known = {decide::state_from_json(saved->body), saved->seq, {}, {}};
    }
  } catch (const Error&) {  // it goes away anyhow
  }
  return read;
}

}  // namespace

SetAsideRuns::Read SetAsideRuns::read(Connection& connection, const RunRow& run,
                                      const LateEffects& late) {
  if (run.state == ledger::kDeleting) return of_deleted(connection, run);
  const std::string known = reason(run.id);
  if (!known.empty()) {
    const uint64_t written = hash_of_what_is_written(connection, run);
    const std::lock_guard lock(mutex_);
    const auto found = runs_.find(run.id);
    if (found != runs_.end() && found->second.written == written) {
      throw RunSetAside(run.label(), known);
    }
  }
  try {
    Read read;
    read.policy =
        decide::Policy::parse(run.policy, fmt::format("the policy of {}", run_name(run.id)));
    read.known = state_on_record(connection, run.id, read.policy, late);
    if (!known.empty()) forget(run.id);
    return read;
  } catch (const RunSetAside& error) {
    add(connection, run, error.reason());
    throw;
  } catch (const Error& error) {
    add(connection, run, error.what());
    throw RunSetAside(run.label(), error.what());
  }
}

void SetAsideRuns::add(Connection& connection, const RunRow& run, const std::string& reason) {
  put(run, reason, hash_of_what_is_written(connection, run));
}

void SetAsideRuns::put(const RunRow& run, const std::string& reason, uint64_t written) {
  const std::lock_guard lock(mutex_);
  Known& known = runs_[run.id];
  if (known.entry.reason != reason) {
    spdlog::error("{} ({}) cannot be read from the ledger and is set aside: {}", run_name(run.id),
                  run.label(), reason);
    known.notified = false;
  }
  known.entry = {run.id, run.label(), reason};
  known.written = written;
}

std::string SetAsideRuns::reason(int64_t run) const {
  const std::lock_guard lock(mutex_);
  const auto found = runs_.find(run);
  return found == runs_.end() ? std::string() : found->second.entry.reason;
}

std::vector<SetAsideRuns::Entry> SetAsideRuns::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (const auto& [run, known] : runs_) entries.push_back(known.entry);
  return entries;
}

std::vector<SetAsideRuns::Entry> SetAsideRuns::newcomers() {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> entries;
  for (auto& [run, known] : runs_) {
    if (!std::exchange(known.notified, true)) entries.push_back(known.entry);
  }
  return entries;
}

void SetAsideRuns::retry_notice(int64_t run) {
  const std::lock_guard lock(mutex_);
  if (const auto found = runs_.find(run); found != runs_.end()) found->second.notified = false;
}

void SetAsideRuns::forget(int64_t run) {
  const std::lock_guard lock(mutex_);
  runs_.erase(run);
}

}  // namespace gnomon
