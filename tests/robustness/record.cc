#include "tests/robustness/record.h"

namespace gnomon::robustness {

Record::Record(std::vector<RunScenario> scenarios) {
  for (RunScenario& scenario : scenarios) {
    runs_.emplace_back();
    runs_.back().scenario = std::move(scenario);
  }
}

void Record::violation(const std::string& what) {
  const std::lock_guard lock(mutex_);
  violations_.push_back(what);
}

std::vector<std::string> Record::violations() const {
  const std::lock_guard lock(mutex_);
  return violations_;
}

void Record::count(const std::string& what, int64_t by) {
  const std::lock_guard lock(mutex_);
  counts_[what] += by;
}

std::map<std::string, int64_t> Record::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

int Record::number_of(int64_t id) const {
  const std::lock_guard lock(mutex_);
  for (const RunRecord& run : runs_) {
    if (run.id == id) return run.scenario.number;
  }
  return -1;
}

int64_t Record::plan_version(int number, int64_t attempt, int64_t step) const {
  const std::lock_guard lock(mutex_);
  const RunRecord& run = runs_[static_cast<size_t>(number)];
  const auto found = run.steps.find({attempt, step});
  return found == run.steps.end() ? 1 : found->second.first;
}

}  // namespace gnomon::robustness
