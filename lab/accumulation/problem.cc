#include "lab/accumulation/problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/errors.h"
#include "base/philox.h"

namespace gnomon {
namespace {

constexpr int64_t kMultiple = 16;

constexpr std::array kKinds = {DataKind::kUniform, DataKind::kPositive, DataKind::kWideRange,
                               DataKind::kCancelling, DataKind::kHugeAmongTiny};

// Element t of row `row` of an operand, by the words of a counter of its own.
class Rows {
 public:
  Rows(Format format, uint64_t seed, uint64_t stream)
      : format_(format), seed_(seed), stream_(stream) {}

  std::array<uint32_t, 4> words(int64_t row, int64_t t) const {
    return philox(seed_, stream_, static_cast<uint64_t>(row) << 32 | static_cast<uint64_t>(t));
  }
  uint8_t code(float value) const { return static_cast<uint8_t>(encode(format_, value)); }
  uint8_t uniform(int64_t row, int64_t t) const {
    return code((2 * philox_uniform(words(row, t)[0]) - 1) * largest());
  }
  uint8_t positive(int64_t row, int64_t t) const { return uniform(row, t) & 0x7Fu; }
  uint8_t any_finite(int64_t row, int64_t t) const {
    for (uint32_t word : words(row, t)) {
      const auto found = static_cast<uint8_t>(word);
      if (std::isfinite(decode(format_, found))) return found;
    }
    return 0;
  }
  // ±1 to ±16, as likely in each binary exponent.
  uint8_t tiny(int64_t row, int64_t t) const {
    const std::array<uint32_t, 4> w = words(row, t);
    const float magnitude = std::exp2(4 * philox_uniform(w[0]));
    return code((w[1] & 1u) != 0 ? -magnitude : magnitude);
  }
  uint8_t huge(int64_t row, int64_t t) const {
    return code((words(row, t)[1] & 1u) != 0 ? -largest() : largest());
  }

 private:
  float largest() const { return static_cast<float>(format_info(format_).largest); }

  Format format_;
  uint64_t seed_, stream_;
};

void fill_cancelling(const Rows& rows, int64_t row, int64_t k, bool negated, uint8_t* out) {
  const int64_t half = k / 2;
  for (int64_t t = 0; t < half; ++t) {
    out[t] = rows.uniform(row, t);
    const bool kept = rows.words(row, t)[1] % 8 == 0;
    const uint8_t second = kept && negated ? rows.uniform(row, t + half) : out[t];
    out[t + half] = static_cast<uint8_t>(second ^ (negated ? 0x80u : 0u));
  }
}

std::vector<uint8_t> operand(const ProblemSpec& spec, bool is_b, uint64_t seed) {
  const Rows rows(is_b ? spec.b_format : spec.a_format, seed, is_b ? 2 : 1);
  const int64_t count = is_b ? spec.n : spec.m;
  const int64_t huge_at = philox(seed, 3, 0)[0] % spec.k;
  std::vector<uint8_t> codes(static_cast<size_t>(count * spec.k));
  for (int64_t row = 0; row < count; ++row) {
    uint8_t* out = &codes[static_cast<size_t>(row * spec.k)];
    if (spec.kind == DataKind::kCancelling) {
      fill_cancelling(rows, row, spec.k, is_b, out);
      continue;
    }
    for (int64_t t = 0; t < spec.k; ++t) {
      switch (spec.kind) {
        case DataKind::kPositive:
          out[t] = rows.positive(row, t);
          break;
        case DataKind::kWideRange:
          out[t] = rows.any_finite(row, t);
          break;
        case DataKind::kHugeAmongTiny:
          out[t] = t == huge_at ? rows.huge(row, t) : rows.tiny(row, t);
          break;
        default:
          out[t] = rows.uniform(row, t);
      }
    }
  }
  return codes;
}

}  // namespace

std::string_view data_kind_name(DataKind kind) {
  switch (kind) {
    case DataKind::kUniform:
      return "uniform";
    case DataKind::kPositive:
      return "positive";
    case DataKind::kWideRange:
      return "wide_range";
    case DataKind::kCancelling:
      return "cancelling";
    case DataKind::kHugeAmongTiny:
      return "huge_among_tiny";
  }
  return "";
}

std::string ProblemSpec::name() const {
  return fmt::format("{}·{} {}×{}×{} {}", format_name(a_format), format_name(b_format), m, n, k,
                     data_kind_name(kind));
}

ProductProblem make_problem(const ProblemSpec& spec, uint64_t seed) {
  for (int64_t dimension : {spec.m, spec.n, spec.k}) {
    GNOMON_ASSERT(dimension > 0 && dimension % kMultiple == 0);
  }
  return {spec, operand(spec, false, seed), operand(spec, true, seed)};
}

Sample sample_of(const ProblemSpec& spec, int64_t most) {
  GNOMON_ASSERT(most > 1);
  auto spread = [most](int64_t size) {
    const int64_t count = std::min(size, most);
    std::vector<int64_t> chosen;
    for (int64_t i = 0; i < count; ++i) chosen.push_back(i * (size - 1) / (count - 1));
    return chosen;
  };
  return {spread(spec.m), spread(spec.n)};
}

ProductProblem part_of(const ProductProblem& problem, const Sample& sample) {
  const int64_t k = problem.spec.k;
  ProductProblem part{problem.spec, {}, {}};
  part.spec.m = std::ssize(sample.rows);
  part.spec.n = std::ssize(sample.columns);
  for (int64_t row : sample.rows) {
    const auto first = problem.a.begin() + row * k;
    part.a.insert(part.a.end(), first, first + k);
  }
  for (int64_t column : sample.columns) {
    const auto first = problem.b.begin() + column * k;
    part.b.insert(part.b.end(), first, first + k);
  }
  return part;
}

std::vector<float> part_of(const std::vector<float>& d, const ProblemSpec& spec,
                           const Sample& sample) {
  std::vector<float> part;
  for (int64_t row : sample.rows) {
    for (int64_t column : sample.columns) {
      part.push_back(d[static_cast<size_t>(row * spec.n + column)]);
    }
  }
  return part;
}

std::vector<ProblemSpec> default_problems(int64_t k_max) {
  struct Shape {
    int64_t m, n, k;
  };
  constexpr Shape kShapes[] = {{64, 64, 32},       {64, 64, 48},     {16, 16, 80},
                               {64, 64, 128},      {128, 48, 144},   {64, 64, 256},
                               {256, 256, 512},    {48, 96, 1040},   {1024, 768, 1024},
                               {2048, 2048, 2048}, {512, 512, 4096}, {64, 64, 8192}};
  std::vector<ProblemSpec> specs;
  for (const Shape& shape : kShapes) {
    if (shape.k > k_max) continue;
    for (Format a_format : {Format::kE4m3, Format::kE5m2}) {
      for (DataKind kind : kKinds) {
        specs.push_back({shape.m, shape.n, shape.k, a_format, Format::kE4m3, kind});
      }
    }
  }
  return specs;
}

}  // namespace gnomon
