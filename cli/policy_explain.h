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

std::vector<PolicySection> explain_policy(const decide::Policy& policy);

}  // namespace gnomon::cli
