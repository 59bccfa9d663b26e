// State of `delayed` scaling: for every site and tensor the largest magnitudes of past steps. Only
// what can still become the maximum of a window is kept, so that a history of 1024 steps costs a
// few numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "numerics/recipes.h"
#include "protocol/precision_plan.h"

namespace gnomon {

// How this GEMM, of this precision, quantises the tensor. The tensor is as it is stored:
// input [n, in], weight [out, in], gradient [n, out], row-major; tiles run along what that GEMM
// sums over (docs/recipes.md). `delayed` alone gives ScaleRule::kGiven. Only for a GEMM in low
// precision and a tensor that it reads.
Quantizer quantizer_for(const GemmPrecision& precision, TensorRole role, Gemm gemm);

// The last `length` amaxes of one tensor, one for each step. Equivalent to a ring buffer as far as
// max() goes, for every length: an entry is dropped once a newer one is at least as large.
class AmaxHistory {
 public:
  struct Entry {
    int64_t index = 0;  // number of the push, from 0
    float amax = 0;
    bool operator==(const Entry&) const = default;
  };

  bool empty() const { return entries_.empty(); }
  float max() const { return entries_.front().amax; }  // not when empty
  // `amax` is finite and above 0.
  void push(float amax, int length);
  void clear() { *this = {}; }

  int64_t pushes() const { return pushes_; }
  const std::vector<Entry>& entries() const { return entries_; }
  // Throws Error unless the entries could have come from pushes.
  void restore(int64_t pushes, std::vector<Entry> entries);
  bool operator==(const AmaxHistory&) const = default;

 private:
  int64_t pushes_ = 0;
  std::vector<Entry> entries_;  // indices grow, amaxes fall
};

class ScalingState {
 public:
  explicit ScalingState(int sites);

  int sites() const { return static_cast<int>(tensors_.size()) / kTensorRoles; }
  const AmaxHistory& history(int site, TensorRole role) const { return at(site, role).history; }
  AmaxHistory& history(int site, TensorRole role) { return at(site, role).history; }
  void clear();
  // A number that differs, but for chance, where other tensors have a history, or other ones have
  // the history of the site before.
  uint64_t known() const;
  // The plan is now this one: a history stays only where the tensor is (and so was) quantised with
  // the `delayed` recipe.
  void change(const std::vector<SitePrecision>& precisions);
  // This step met `amax`; several micro-batches leave their maximum. Takes effect with finish_step.
  void observe(int site, TensorRole role, float amax);
  // As if the step had met none yet.
  void forget_observed();
  // Every tensor's amax of this step passes through `combine`, which may make it larger (other
  // ranks met larger ones); negative where none was met.
  void combine_observed(const std::function<void(std::span<double>)>& combine);
  // Moves what was observed into the histories, except where `frozen` says so (an empty history
  // takes its first entry all the same). An amax of 0, Inf or NaN is not recorded.
  void finish_step(const std::vector<SitePrecision>& precisions,
                   const std::function<bool(int, TensorRole)>& frozen);

 private:
  struct Tensor {
    AmaxHistory history;
    float observed = -1;
  };
  static size_t index(int site, TensorRole role) {
    return static_cast<size_t>(site) * kTensorRoles + static_cast<size_t>(role);
  }
  Tensor& at(int site, TensorRole role) { return tensors_[index(site, role)]; }
  const Tensor& at(int site, TensorRole role) const { return tensors_[index(site, role)]; }

  std::vector<Tensor> tensors_;
};

}  // namespace gnomon
