// Ways in which a product may be added up: the candidates that a device's results are held against.
#pragma once

#include <string>
#include <vector>

#include "kernels/scaled_product.h"
#include "lab/accumulation/problem.h"

namespace gnomon {

enum class SumKind {
  kExact,       // in double, rounded to FP32 once
  kFp32,        // term by term in FP32
  kTensorCore,  // as `sum` says, promoted every `promote_every` terms (0 = never)
};

struct Variant {
  SumKind kind = SumKind::kTensorCore;
  TensorCoreSum sum = {};
  int64_t promote_every = 0;
  bool operator==(const Variant&) const = default;
  std::string name() const;  // "32 terms, 13 bits, result 13 bits, promoted every 128"
};

// What `accumulate = "hopper"` does today: without promotion, or every 128 terms.
Variant default_variant(bool fast_accumulate);

// The exact ones, and every group of 16, 32 and 64 terms with 10 to 23 fraction bits, a result of
// as many or of 23, never promoted or every 32 to 512 terms. The defaults come first.
std::vector<Variant> candidate_variants();

// Throws ConfigError for what the emulation does not take:
// "terms=32,bits=13,result=13,promote=128", any part of it left out has its default (promotion:
// never).
Variant variant_from_text(const std::string& text, const std::string& flag);

// D of the problem, row-major. The bits do not depend on the number of threads.
std::vector<float> multiply(const Variant& variant, const ProductProblem& problem, int threads);

}  // namespace gnomon
