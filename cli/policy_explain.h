// A policy in plain words, for the person who has to sign it.
#pragma once

#include <string>
#include <vector>

#include "controller/decide/policy.h"

namespace gnomon::cli {

struct PolicySection {
  std::string title;
  std::vector<std::string> sentences;
};

// `run_steps`: the run's length, 0 where it is not known.
std::vector<PolicySection> explain_policy(const decide::Policy& policy, int64_t run_steps);

}  // namespace gnomon::cli
