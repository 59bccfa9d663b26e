#include "controller/metrics/layers.h"

#include <map>

#include "protocol/precision_plan.h"

namespace gnomon {

std::string layer_of_site(const std::string& site) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!site.starts_with(kPrefix)) {
    return site;
  }
  size_t end = site.find('.', kPrefix.size());
  return site.substr(kPrefix.size(), end == std::string::npos ? end : end - kPrefix.size());
}

std::vector<std::pair<std::string, double>> layer_shares(const std::string& plan_toml,
                                                         const std::vector<std::string>& sites,
                                                         int layers) {
  PrecisionPlan plan = PrecisionPlan::parse(plan_toml);
  std::vector<std::pair<std::string, double>> shares;
  std::map<std::string, size_t> index;
  std::vector<double> gemms;
  for (const std::string& site : sites) {
    std::string layer = layer_of_site(site);
    auto [found, fresh] = index.emplace(layer, shares.size());
    if (fresh) {
      shares.emplace_back(layer, 0.0);
      gemms.push_back(0);
    }
    SitePrecision precision = plan.resolve(site, layers);
    for (Gemm gemm : kGemms) {
      shares[found->second].second += precision.uses_fp8(gemm) ? 1 : 0;
      gemms[found->second] += 1;
    }
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    shares[i].second /= gemms[i];
  }
  return shares;
}

}  // namespace gnomon
