// What the fuzzer of the API knows: facts that gnomond has acknowledged, and nothing else. One call
// is made at a time, so there is no fact that may or may not be on record.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "protocol/records.h"
#include "tests/robustness/record.h"
#include "tests/robustness/scenario.h"

namespace gnomon::robustness {

// A rule that does not hold. Calls are dropped from a failing sequence as long as the same rule
// (`rule`) is broken.
class BrokenRule : public std::runtime_error {
 public:
  BrokenRule(std::string rule, const std::string& what)
      : std::runtime_error(what), rule_(std::move(rule)) {}
  const std::string& rule() const { return rule_; }

 private:
  std::string rule_;
};

struct ApiRun {
  RunScenario scenario;
  int64_t id = 0;  // 0: not registered, or deleted since
  std::string life;
  bool life_is_known = true;  // false: it is read anew from the next answer
  bool policy_changed = false;
  int64_t plan_version = 1;
  std::map<int64_t, AttemptStart> attempts;
  std::map<StepKey, StepReport> steps;
  std::map<StepKey, CheckpointReport> checkpoints;
  std::set<std::string> notices;    // their texts
  std::set<std::string> overrides;  // their reasons
  std::map<int64_t, Directive> directives;

  bool registered() const { return id != 0; }
  bool ended() const { return life == "stopped" || life == "failed"; }
  std::string path() const { return "/v1/runs/run-" + std::to_string(id); }
  int64_t newest_attempt() const { return attempts.empty() ? 0 : attempts.rbegin()->first; }
  // The newest attempt's newest step; where it began when it has none.
  int64_t newest_step() const;
  // The run is gone: its name may be registered anew.
  void forget();
};

struct ApiLease {
  Lease lease;
  std::string principal;
  std::string result;  // the body that was accepted; empty: none yet
};

struct ApiModel {
  std::vector<ApiRun> runs;
  std::vector<ApiLease> leases;

  // The run of this id; null when it is not registered.
  ApiRun* run_of(int64_t id);
};

// The number of "run-3".
int64_t run_id_of(const std::string& name);

}  // namespace gnomon::robustness
