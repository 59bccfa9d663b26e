#include "tests/robustness/api_model.h"

namespace gnomon::robustness {

int64_t ApiRun::newest_step() const {
  const int64_t attempt = newest_attempt();
  if (attempt == 0) return 0;
  const auto above = steps.lower_bound({attempt + 1, INT64_MIN});
  if (above != steps.begin() && std::prev(above)->first.first == attempt) {
    return std::prev(above)->first.second;
  }
  return attempts.at(attempt).base_step;
}

void ApiRun::forget() {
  const RunScenario kept = scenario;
  *this = ApiRun();
  scenario = kept;
}

ApiRun* ApiModel::run_of(int64_t id) {
  for (ApiRun& run : runs) {
    if (run.id == id && id != 0) return &run;
  }
  return nullptr;
}

int64_t run_id_of(const std::string& name) { return std::stoll(name.substr(name.find('-') + 1)); }

}  // namespace gnomon::robustness
