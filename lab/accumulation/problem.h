// Products to compare a device's sums with emulated ones: shapes, operands in E4M3 or E5M2 codes,
// and several kinds of data, of which each makes another property of the sum visible.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/formats.h"

namespace gnomon {

enum class DataKind {
  kUniform,        // both signs, uniform up to the format's largest
  kPositive,       // the same without signs: the sum grows, and loses ever more of each term
  kWideRange,      // every finite code as likely: all exponents, subnormals and zeros too
  kCancelling,     // the second half takes back most of what the first half added
  kHugeAmongTiny,  // one product far above all others, at the same place of every sum
};
std::string_view data_kind_name(DataKind kind);  // "huge_among_tiny"

struct ProblemSpec {
  int64_t m = 0, n = 0, k = 0;
  Format a_format = Format::kE4m3;
  Format b_format = Format::kE4m3;
  DataKind kind = DataKind::kUniform;
  std::string name() const;  // "e4m3·e5m2 64×64×8192 uniform"
};

// D[m,n] = A[m,k]·B[n,k]ᵀ, row-major codes, all finite, no scales.
struct ProductProblem {
  ProblemSpec spec;
  std::vector<uint8_t> a, b;
};

// A function of (spec, seed) alone. Dimensions are multiples of 16, as cuBLASLt wants them.
ProductProblem make_problem(const ProblemSpec& spec, uint64_t seed);

// Rows and columns of D that are looked at: at most `most` of each, spread evenly from the first to
// the last.
struct Sample {
  std::vector<int64_t> rows, columns;
};
Sample sample_of(const ProblemSpec& spec, int64_t most);

// The product of these rows and columns alone: an output depends on no other.
ProductProblem part_of(const ProductProblem& problem, const Sample& sample);
std::vector<float> part_of(const std::vector<float>& d, const ProblemSpec& spec,
                           const Sample& sample);

// E4M3·E4M3 and E5M2·E4M3, every kind; sums of 32 to k_max terms, among them odd multiples of 16;
// D from 16 × 16 to 2048 × 2048, since a library has other kernels for other sizes.
std::vector<ProblemSpec> default_problems(int64_t k_max);

}  // namespace gnomon
