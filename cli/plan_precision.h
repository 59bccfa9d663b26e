// What the versions of a run's precision plan mean for its sites: which GEMMs run in FP8.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cli/ledger_view.h"

namespace gnomon::cli {

// By plan version, for each of `sites` in order: fprop, dgrad, wgrad in FP8?
class PlanPrecisions {
 public:
  using Sites = std::vector<std::array<bool, 3>>;

  explicit PlanPrecisions(const RunHistory& history);

  const Sites& base() const { return base_; }
  // nullptr for an unknown version.
  const Sites* of(int64_t version) const;
  const std::map<int64_t, Sites>& by_version() const { return versions_; }
  Sites parse(const std::string& toml) const;
  // True when some GEMM that is FP8 in the run's own plan is not in `other`.
  bool less_than_base(const Sites& other) const;

 private:
  std::vector<std::string> names_;
  int layers_;
  Sites base_;
  std::map<int64_t, Sites> versions_;
};

}  // namespace gnomon::cli
