// What the faults of a run do to each thing that the engine computes: one question for each place
// where something can go wrong, asked there by site and step. Without faults every answer is
// "nothing" and costs a look at an empty list.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/scaled_product.h"
#include "numerics/formats.h"
#include "numerics/recipes.h"
#include "protocol/precision_plan.h"
#include "trainer/engine/faults.h"
#include "trainer/engine/scaling.h"

namespace gnomon {

// Where an engine computes, and what for.
enum class EngineRole {
  kLive,    // the run itself: every fault strikes
  kReplay,  // elsewhere: no fault of the hardware, nor of the run's data loader
  kInline,  // a replay on the run's own device: its persistent faults strike, and no other
};

struct OutlierChannel {
  int64_t channel = 0;
  int log2_factor = 0;  // at this step; 0: not grown yet
};

// What FP8 second moments go through before they are stored: they are rounded to `format`, with
// amax/largest of the whole tensor as scale, off by 2^n.
struct MomentRounding {
  Format format = Format::kE4m3;
  int log2_factor = 0;
};

class FaultView {
 public:
  FaultView() = default;  // no faults
  // `sites` and `layers` are the model's. Every fault has passed check_fault().
  FaultView(std::vector<Fault> faults, const std::vector<std::string>& sites, int layers);

  void set_role(EngineRole role) { role_ = role; }
  EngineRole role() const { return role_; }

  // ---- the precision of GEMMs ----
  // How the sites run in truth where the plan says `planned`: that, or `room` with what is wrong.
  const std::vector<SitePrecision>& precisions(const std::vector<SitePrecision>& planned,
                                               int64_t step,
                                               std::vector<SitePrecision>& room) const;

  // ---- quantisation ----
  int scale_shift(int site, TensorRole role, int64_t step) const;  // log2 of what scales are off by
  bool frozen(int site, TensorRole role, int64_t step) const;      // whether the amax history is
  std::optional<OutlierChannel> outlier(int site, int64_t step) const;
  // True when the FP8 copy of the weight is an old one in this step; and when it is made anew
  // before it.
  bool stale(int site, int64_t step) const;
  bool refreshes(int site, int64_t step) const;

  // ---- the FP8 kernel ----
  std::optional<TermRange> dropped(int site, Gemm gemm, int64_t step) const;
  std::optional<Accumulation> accumulation(int site, Gemm gemm, int64_t step) const;

  // ---- the device ----
  const Fault* stuck_output(int site, int64_t step) const;  // nullptr: none
  // Bit flips of gradients that strike in this step.
  std::vector<const Fault*> flipped_gradients(int64_t step) const;
  // Faults of master weights that strike after this step: bit_flip and stuck_bit.
  std::vector<const Fault*> struck_weights(int64_t step) const;

  // ---- data and optimizer ----
  bool corrupt(int64_t step) const;
  int64_t batch_of(int64_t step) const;  // the step whose batch is read
  double learning_rate_factor(int64_t step) const;
  std::optional<MomentRounding> second_moment(int site, int64_t step) const;
  int wire_shift(int64_t step) const;  // log2 of what the scales of gradients in FP8 are off by

 private:
  // A fault, with its words read.
  struct ResolvedFault {
    ResolvedFault(Fault given, const std::vector<std::string>& model_sites, int layers);
    bool acts(FaultKind kind, int64_t step) const {
      return fault.kind == kind && fault.active(step);
    }
    bool at(int site) const { return sites[static_cast<size_t>(site)]; }

    Fault fault;
    std::vector<bool> sites;           // whether it is about the site
    Format format = Format::kE4m3;     // of a kind that has one
    std::optional<Gemm> gemm;          // absent: all of them
    std::optional<TensorRole> tensor;  // absent: the output
  };
  // The last fault of this kind that acts at the site in this step; nullptr: none.
  const ResolvedFault* find(FaultKind kind, int site, int64_t step) const;
  const ResolvedFault* find(FaultKind kind, int site, Gemm gemm, int64_t step) const;

  std::vector<ResolvedFault> faults_;
  EngineRole role_ = EngineRole::kLive;
};

}  // namespace gnomon
