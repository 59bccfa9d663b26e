// Statistics of tensors, and of what rounding does to them. docs/statistics.md defines each number.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 5> kTensorNames = {"input", "weight", "gradient",
                                                                 "output", "weight_gradient"};
using TensorName = Word<kTensorNames>;
inline constexpr std::array<std::string_view, 4> kGemmsOrNone = {"", "fprop", "dgrad", "wgrad"};
using GemmOrNone = Word<kGemmsOrNone>;

namespace rules {
inline constexpr Range kShare = {0, 1, true};
inline constexpr Range kCosine = {-1.001, 1.001, true};
inline constexpr Range kPercent = {-100, 100, true};
inline constexpr Range kSumOfSquares = {0, 1e300, true, true};
}  // namespace rules

// What StatisticsRow may say of a tensor, and of what rounding does to it. kernels/statistics.h and
// docs/statistics.md define each.
enum class StatisticsNumber {
  kNans,
  kInfinities,
  kZeros,
  kMin,
  kMax,
  kAmax,
  kAmin,
  kMean,
  kStd,
  kL1,
  kL2,
  kDynamicRange,
  kKurtosis,
  kTokenKurtosisMean,
  kTokenKurtosisMax,
  kAmaxOverWindow,
  kGateCosineMean,
  kGateCosineMax,
  kTiles,
  kUnderflow,
  kUnderflowPercent,
  kSaturation,
  kOverflow,
  kSubnormal,
  kTopCode,
  kTopCodeTileMax,
  kTilesInTopCode,
  kMse,
  kRelativeError,
  kCosine,
  kSqnrDb,
  kScaleMin,
  kScaleMax,
  kTileRangeMean,
  kTileRangeMax,
  kScaleError,
};
// By StatisticsNumber: their names in JSON, the ledger and the command line.
struct NamedRange {
  const char* name;
  Range range;
};
inline constexpr std::array<NamedRange, 36> kStatisticsNumbers = {{
    {"nans", rules::kCount},
    {"infinities", rules::kCount},
    {"zeros", rules::kCount},
    {"min", rules::kAnyNumber},
    {"max", rules::kAnyNumber},
    {"amax", rules::kMagnitude},
    {"amin", rules::kMagnitude},
    {"mean", rules::kAnyNumber},
    {"std", rules::kMagnitude},
    {"l1", rules::kSumOfSquares},
    {"l2", rules::kSumOfSquares},
    {"dynamic_range", rules::kMagnitude},
    {"kurtosis", rules::kMagnitude},
    {"token_kurtosis_mean", rules::kMagnitude},
    {"token_kurtosis_max", rules::kMagnitude},
    {"amax_over_window", rules::kMagnitude},
    {"gate_cosine_mean", rules::kCosine},
    {"gate_cosine_max", rules::kCosine},
    {"tiles", rules::kCount},
    {"underflow", rules::kShare},
    {"underflow_percent", rules::kPercent},
    {"saturation", rules::kShare},
    {"overflow", rules::kShare},
    {"subnormal", rules::kShare},
    {"top_code", rules::kShare},
    {"top_code_tile_max", rules::kShare},
    {"tiles_in_top_code", rules::kAnyNumber},
    {"mse", rules::kSumOfSquares},
    {"relative_error", rules::kMagnitude},
    {"cosine", rules::kCosine},
    {"sqnr_db", rules::kAnyNumber},
    {"scale_min", rules::kMagnitude},
    {"scale_max", rules::kMagnitude},
    {"tile_range_mean", rules::kMagnitude},
    {"tile_range_max", rules::kMagnitude},
    {"scale_error", rules::kAnyNumber},
}};

inline constexpr auto kStatisticsNames = [] {
  std::array<std::string_view, kStatisticsNumbers.size()> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = kStatisticsNumbers[i].name;
  return names;
}();

// Statistics of a tensor (gemm and recipe empty), or of rounding it for one GEMM.
struct StatisticsRow {
  std::string site;
  TensorName tensor;    // input, weight, gradient, output
  GemmOrNone gemm;      // fprop, dgrad, wgrad
  std::string recipe;   // as in plans; a "what if" may have formats behind it
  bool in_use = false;  // the GEMM ran so; otherwise what if
  int64_t elements = 0;
  std::array<std::optional<double>, kStatisticsNumbers.size()> numbers = {};
  // Nonzero elements by binary exponent, from histogram_lowest on; those lower still.
  int histogram_lowest = 0;
  int64_t histogram_below = 0;
  std::vector<int64_t> histogram = {};

  std::optional<double> number(StatisticsNumber which) const {
    return numbers[static_cast<size_t>(which)];
  }

  static constexpr Record kRecord = {
      "StatisticsRow",
      "Statistics of a tensor (gemm and recipe empty), or of rounding it for one GEMM. "
      "docs/statistics.md defines each number."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = StatisticsRow;
    v("site", &R::site, Member{.required = true, .help = "A GEMM site of the run."});
    v("tensor", &R::tensor, Member{.required = true});
    v("gemm", &R::gemm, Member{});
    v("recipe", &R::recipe,
      Member{.text = {.most = 100},
             .help = "As in plans; a \"what if\" may have formats behind it."});
    v("in_use", &R::in_use, Member{.help = "The GEMM ran so; otherwise what if."});
    v("elements", &R::elements, Member{.required = true, .range = kCount});
    for (size_t i = 0; i < kStatisticsNumbers.size(); ++i) {
      v(
          kStatisticsNumbers[i].name, [i](auto& row) -> auto& { return row.numbers[i]; },
          Member{.range = kStatisticsNumbers[i].range});
    }
    v("histogram_lowest", &R::histogram_lowest,
      Member{.help = "The binary exponent of the first bin."});
    v("histogram_below", &R::histogram_below,
      Member{.range = kCount, .help = "Nonzero elements lower still."});
    v("histogram", &R::histogram,
      Member{.range = kCount, .items_most = 100, .help = "Nonzero elements by binary exponent."});
  }
};

// POST /v1/runs/{run}/statistics: some of the rows of one step. A row is known by (attempt, step,
// site, tensor, gemm, recipe, in_use); the first one stays.
struct StatisticsReport {
  int64_t attempt = 1;
  int64_t step = 0;
  int64_t plan_version = 0;
  std::vector<StatisticsRow> rows;
  double time = 0;

  static constexpr Record kRecord = {
      "StatisticsReport", "Some of the rows of one step. A row that is on record stays."};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = StatisticsReport;
    v("attempt", &R::attempt, Member{.required = true, .range = {1, kStepsMax}});
    v("step", &R::step, Member{.required = true, .range = {1, kStepsMax}});
    v("plan_version", &R::plan_version, Member{.range = kPlanVersion});
    v("rows", &R::rows, Member{.required = true, .items_most = 4096});
    v("time", &R::time, Member{.range = kTime});
  }
};

}  // namespace gnomon
