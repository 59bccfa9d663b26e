#include "cli/plan_precision.h"

#include "protocol/precision_plan.h"

namespace gnomon::cli {

PlanPrecisions::PlanPrecisions(const RunHistory& history)
    : names_(history.registration.sites), layers_(history.registration.layers) {
  base_ = parse(history.registration.base_plan);
  for (const PlanRow& plan : history.plans) versions_[plan.version] = parse(plan.toml);
}

PlanPrecisions::Sites PlanPrecisions::parse(const std::string& toml) const {
  PrecisionPlan plan = PrecisionPlan::parse(toml, "ledger");
  Sites sites;
  for (const std::string& name : names_) {
    const SitePrecision precision = plan.resolve(name, layers_);
    sites.push_back({precision.gemms[0].fp8, precision.gemms[1].fp8, precision.gemms[2].fp8});
  }
  return sites;
}

const PlanPrecisions::Sites* PlanPrecisions::of(int64_t version) const {
  auto found = versions_.find(version);
  return found == versions_.end() ? nullptr : &found->second;
}

bool PlanPrecisions::less_than_base(const Sites& other) const {
  for (size_t site = 0; site < base_.size(); ++site) {
    for (size_t gemm = 0; gemm < 3; ++gemm) {
      if (base_[site][gemm] && !other[site][gemm]) return true;
    }
  }
  return false;
}

}  // namespace gnomon::cli
