// What `gnomon simulate` prints: policies side by side.
#pragma once

#include <boost/json/object.hpp>
#include <string>
#include <vector>

#include "controller/decide/policy.h"
#include "lab/simulate/study.h"

namespace gnomon::cli {

struct SimulatedPolicy {
  std::string name;
  decide::Policy policy;
  simulate::Summary summary;
};

struct Simulation {
  simulate::RunModel model;
  simulate::StudyOptions options;
  std::vector<SimulatedPolicy> policies;
  Duration duration = {};
  int64_t windows() const;  // of all policies
};

boost::json::object to_json(const Simulation& simulation);
std::string in_words(const Simulation& simulation);

}  // namespace gnomon::cli
