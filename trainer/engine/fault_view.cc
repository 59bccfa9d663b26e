#include "trainer/engine/fault_view.h"

#include <algorithm>
#include <limits>

namespace gnomon {
namespace {

constexpr int64_t kNeverPromoted = 0;

bool is_about(const Fault& fault, const std::string& site, int layers) {
  switch (fault_traits(fault.kind).place) {
    case FaultPlace::kSite:
    case FaultPlace::kDownProjection:
      return fault.site == site;
    case FaultPlace::kSites:
      return site_matches(fault.site, site, layers);
    case FaultPlace::kNothing:
    case FaultPlace::kParameter:
      return false;
  }
  return false;
}

bool changes_precision(FaultKind kind) {
  return kind == FaultKind::kGradientUnderflow || kind == FaultKind::kReducedMantissa ||
         kind == FaultKind::kE5m2Everywhere || kind == FaultKind::kCoarseRecipe;
}

void change_formats(Format forward, Format gradient, GemmPrecision& precision) {
  precision.forward_format = forward;
  precision.gradient_format = gradient;
  if (is_fp8(forward) && is_fp8(gradient)) return;
  precision.accumulate = Accumulate::kFp32;
  precision.promote_every = GemmPrecision::kPromoteByRecipe;
}

void change(const Fault& fault, GemmPrecision& precision) {
  switch (fault.kind) {
    case FaultKind::kGradientUnderflow:
      return change_formats(precision.forward_format, "e4m3", precision);
    case FaultKind::kReducedMantissa:
      if (fault.format.starts_with("e8")) precision.choose(Recipe::kNone);
      return change_formats(fault.format, fault.format, precision);
    case FaultKind::kE5m2Everywhere:
      return change_formats("e5m2", "e5m2", precision);
    case FaultKind::kCoarseRecipe:
      precision.choose(Recipe::kCurrent);
      return change_formats(fault.format, fault.format, precision);
    default:
      return;
  }
}

// Growth by powers of two, evenly over fault.steps steps.
int grown(const Fault& fault, int64_t step) {
  const int64_t done = step - fault.start_step + 1;
  if (done >= fault.steps) return fault.log2_factor;
  return static_cast<int>(int64_t{fault.log2_factor} * done / fault.steps);
}

}  // namespace

FaultView::FaultView(std::vector<Fault> faults, const std::vector<std::string>& sites, int layers)
    : faults_(std::move(faults)) {
  for (const Fault& fault : faults_) {
    std::vector<bool>& mask = sites_.emplace_back();
    for (const std::string& site : sites) mask.push_back(is_about(fault, site, layers));
  }
}

const Fault* FaultView::find(FaultKind kind, int site, int64_t step) const {
  for (size_t i = faults_.size(); i-- > 0;) {
    if (faults_[i].kind == kind && faults_[i].active(step) && at(i, site)) return &faults_[i];
  }
  return nullptr;
}

const Fault* FaultView::find(FaultKind kind, int site, Gemm gemm, int64_t step) const {
  for (size_t i = faults_.size(); i-- > 0;) {
    const Fault& fault = faults_[i];
    if (fault.kind == kind && fault.active(step) && at(i, site) &&
        (fault.gemm.empty() || fault.gemm == gemm_name(gemm))) {
      return &fault;
    }
  }
  return nullptr;
}

const std::vector<SitePrecision>& FaultView::precisions(const std::vector<SitePrecision>& planned,
                                                        int64_t step,
                                                        std::vector<SitePrecision>& room) const {
  const bool any = std::ranges::any_of(faults_, [&](const Fault& fault) {
    return changes_precision(fault.kind) && fault.active(step);
  });
  if (!any) return planned;
  room = planned;
  for (size_t i = 0; i < faults_.size(); ++i) {
    if (!changes_precision(faults_[i].kind) || !faults_[i].active(step)) continue;
    for (size_t site = 0; site < room.size(); ++site) {
      if (!sites_[i][site]) continue;
      // A GEMM in BF16 does not read what is changed.
      for (Gemm gemm : kGemms) change(faults_[i], room[site][gemm]);
    }
  }
  return room;
}

int FaultView::scale_shift(int site, TensorRole role, int64_t step) const {
  int sum = 0;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (!fault.active(step) || !at(i, site)) continue;
    const bool shifts =
        (fault.kind == FaultKind::kScaleShift && tensor_role_name(role) == fault.tensor) ||
        (fault.kind == FaultKind::kGradientUnderflow && role == TensorRole::kGradient) ||
        fault.kind == FaultKind::kCoarseRecipe;
    if (shifts) sum += fault.log2_factor;
  }
  return sum;
}

bool FaultView::frozen(int site, TensorRole role, int64_t step) const {
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (fault.kind == FaultKind::kFrozenAmax && fault.active(step) && at(i, site) &&
        tensor_role_name(role) == fault.tensor) {
      return true;
    }
  }
  return false;
}

std::optional<OutlierChannel> FaultView::outlier(int site, int64_t step) const {
  const Fault* fault = find(FaultKind::kOutlierChannel, site, step);
  if (fault == nullptr) return std::nullopt;
  return OutlierChannel{fault->element, grown(*fault, step)};
}

bool FaultView::stale(int site, int64_t step) const {
  return find(FaultKind::kStaleWeight, site, step) != nullptr;
}

bool FaultView::refreshes(int site, int64_t step) const {
  const Fault* fault = find(FaultKind::kStaleWeight, site, step);
  if (fault == nullptr) return false;
  const int64_t since = step - fault->start_step;
  return fault->steps == 0 ? since == 0 : since % fault->steps == 0;
}

std::optional<TermRange> FaultView::dropped(int site, Gemm gemm, int64_t step) const {
  const Fault* fault = find(FaultKind::kDroppedKBlock, site, gemm, step);
  if (fault == nullptr) return std::nullopt;
  return TermRange{fault->element, fault->terms};
}

std::optional<Accumulation> FaultView::accumulation(int site, Gemm gemm, int64_t step) const {
  const Fault* fault = find(FaultKind::kWrongAccumulation, site, gemm, step);
  if (fault == nullptr) return std::nullopt;
  return Accumulation{
      .hopper = true,
      .promote_every = kNeverPromoted,
      .sum = {.fraction_bits = fault->fraction_bits, .result_bits = fault->fraction_bits}};
}

const Fault* FaultView::stuck_output(int site, int64_t step) const {
  if (role_ == EngineRole::kReplay) return nullptr;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (fault.kind == FaultKind::kStuckBit && fault.tensor == "output" && fault.active(step) &&
        at(i, site)) {
      return &fault;
    }
  }
  return nullptr;
}

std::vector<const Fault*> FaultView::struck_weights(int64_t step) const {
  std::vector<const Fault*> struck;
  if (role_ == EngineRole::kReplay) return struck;
  for (const Fault& fault : faults_) {
    const bool flips =
        fault.kind == FaultKind::kBitFlip && role_ == EngineRole::kLive && step == fault.start_step;
    const bool sticks =
        fault.kind == FaultKind::kStuckBit && fault.tensor == "weight" && fault.active(step);
    if (flips || sticks) struck.push_back(&fault);
  }
  return struck;
}

bool FaultView::corrupt(int64_t step) const {
  return std::ranges::any_of(faults_, [&](const Fault& fault) {
    return fault.kind == FaultKind::kCorruptBatch && fault.active(step);
  });
}

int64_t FaultView::batch_of(int64_t step) const {
  int64_t batch = step;
  if (role_ != EngineRole::kLive) return batch;
  for (const Fault& fault : faults_) {
    if (fault.kind == FaultKind::kSkippedBatch && fault.active(step)) batch += fault.steps;
  }
  return batch;
}

double FaultView::learning_rate_factor(int64_t step) const {
  double factor = 1;
  for (const Fault& fault : faults_) {
    if (fault.kind == FaultKind::kLearningRateSpike && fault.active(step)) factor *= fault.factor;
  }
  return factor;
}

int FaultView::wire_shift(int64_t step) const {
  int sum = 0;
  for (const Fault& fault : faults_) {
    if (fault.kind == FaultKind::kWireScaleShift && fault.active(step)) sum += fault.log2_factor;
  }
  return sum;
}

std::optional<MomentRounding> FaultView::second_moment(int site, int64_t step) const {
  const Fault* fault = find(FaultKind::kFp8SecondMoment, site, step);
  if (fault == nullptr) return std::nullopt;
  return MomentRounding{format_from_name(fault->format), fault->log2_factor};
}

}  // namespace gnomon
