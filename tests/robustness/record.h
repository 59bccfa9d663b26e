// The model: what clients were told, from which follows what must be on record. Written by all
// threads of a history while it lasts, read when it is over. What a client sent without getting an
// answer may be on record or not; what was acknowledged must be.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "protocol/records.h"
#include "tests/robustness/scenario.h"

namespace gnomon::robustness {

enum class Fate {
  kSent,          // may be on record
  kAcknowledged,  // is on record
};

using StepKey = std::pair<int64_t, int64_t>;  // attempt, step

struct RunRecord {
  RunScenario scenario;
  int64_t id = 0;  // in the ledger; 0 until the registration was answered
  std::map<int64_t, std::pair<AttemptStart, Fate>> attempts;
  std::map<StepKey, std::pair<int64_t, Fate>> steps;  // with their plan's version
  std::map<StepKey, std::pair<int64_t, Fate>> checkpoints;
  std::map<StepKey, Fate> notices;
  int64_t accepted_steps = 0;                           // as the answers say
  std::map<int64_t, Directive> told;                    // as first seen, by number
  std::map<int64_t, Fate> applied;                      // by number
  std::map<int64_t, std::pair<int64_t, Fate>> results;  // replay → token of the accepted lease
  std::set<std::pair<int64_t, int64_t>> granted;        // replay, token
  std::map<std::string, Fate> overrides;                // by reason, which is unique
  std::string finished;                                 // the outcome that was acknowledged
};

class Record {
 public:
  explicit Record(std::vector<RunScenario> scenarios);

  // What must not be. Thread-safe, like everything here.
  void violation(const std::string& what);
  std::vector<std::string> violations() const;
  void count(const std::string& what, int64_t by = 1);
  std::map<std::string, int64_t> counts() const;

  // With the lock held.
  template <typename Change>
  auto of(int number, Change change) {
    const std::lock_guard lock(mutex_);
    return change(runs_[static_cast<size_t>(number)]);
  }
  // The run of this id in the ledger; -1 when no client knows it.
  int number_of(int64_t id) const;
  // Version of the run's plan at a window's end.
  int64_t plan_version(int number, int64_t attempt, int64_t step) const;
  // When all threads are through.
  const std::vector<RunRecord>& runs() const { return runs_; }

 private:
  mutable std::mutex mutex_;
  std::vector<RunRecord> runs_;
  std::vector<std::string> violations_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace gnomon::robustness
