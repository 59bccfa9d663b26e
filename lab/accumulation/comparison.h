// A device's products beside every candidate's: who gives the same bits, how far the others are
// off, and which candidate explains the device best.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "lab/accumulation/problem.h"
#include "lab/accumulation/variant.h"

namespace gnomon {

// How `ours` agrees with a device's result.
struct Agreement {
  int64_t outputs = 0;
  int64_t equal = 0;  // same bits, zeros of either sign counted as the same
  // 1 − 2⟨x,y⟩/(‖x‖² + ‖y‖²), DeepGEMM's measure; 1 with a NaN or infinity on one side only.
  double difference = 0;
  double relative_error_max = 0;  // |x − y| over the larger of |x| and |y|, so at most 2
};
Agreement agreement(std::span<const float> device, std::span<const float> ours);

// One result of the device; libraries have several kernels for a product.
struct DeviceProduct {
  std::string algorithm;
  std::vector<float> d;  // row-major [m,n]
};

// What multiplies: a GPU's library, or in tests an emulation that stands for one.
class ProductDevice {
 public:
  virtual ~ProductDevice() = default;
  virtual std::string name() const = 0;
  // At least one result. `fast_accumulate` asks for sums that are not promoted.
  virtual std::vector<DeviceProduct> multiply(const ProductProblem& problem,
                                              bool fast_accumulate) = 0;
};

// Our own emulation in a device's place, with one rule for each mode.
class EmulatedDevice final : public ProductDevice {
 public:
  EmulatedDevice(const Variant& fast, const Variant& promoted, int threads)
      : fast_(fast), promoted_(promoted), threads_(threads) {}
  std::string name() const override;
  std::vector<DeviceProduct> multiply(const ProductProblem& problem, bool fast_accumulate) override;

 private:
  Variant fast_, promoted_;
  int threads_;
};

struct VariantScore {
  int64_t outputs = 0;
  int64_t equal = 0;
  double difference_mean = 0;  // over the products
  double difference_max = 0;
  double relative_error_max = 0;
  double equal_share() const;
};

// One product of the device, and the candidate next to it.
struct ProductReport {
  ProblemSpec spec;
  std::string algorithm;
  std::vector<Agreement> agreements;  // in the order of the candidates
  size_t best = 0;
};

struct ModeReport {
  bool fast_accumulate = false;
  std::vector<VariantScore> scores;  // in the order of the candidates
  size_t best = 0;
  std::vector<size_t> tied;  // candidates with the same bits everywhere as the best one, it too
  std::vector<ProductReport> products;
  // True when the best candidate gives every bit of every product.
  bool explained() const;
};

// The position of the best: the largest share of equal outputs, then the smallest mean difference,
// then the first.
size_t best_of(std::span<const VariantScore> scores);

struct Comparison {
  std::vector<Variant> candidates;
  std::vector<ModeReport> modes;  // fast accumulation off, then on
  // True when today's default is (tied with) the best candidate in both modes.
  bool defaults_hold() const;
};

struct ComparisonOptions {
  uint64_t seed = 1;
  int64_t sample = 32;  // rows and columns of each D that are emulated, at most
  int threads = 1;
};

// `progress` is called with the problem that begins, its number from 0 on and how many there are.
Comparison compare(ProductDevice& device, const std::vector<ProblemSpec>& problems,
                   const std::vector<Variant>& candidates, const ComparisonOptions& options,
                   const std::function<void(const ProblemSpec&, size_t, size_t)>& progress);

}  // namespace gnomon
