#include "trainer/engine/fault_view.h"

#include <algorithm>

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

// `format` is the fault's, where its kind has one.
void change(FaultKind kind, Format format, GemmPrecision& precision) {
  switch (kind) {
    case FaultKind::kGradientUnderflow:
      return change_formats(precision.forward_format, Format::kE4m3, precision);
    case FaultKind::kReducedMantissa:
      if (is_reduced_mantissa(format)) precision.choose(Recipe::kNone);
      return change_formats(format, format, precision);
    case FaultKind::kE5m2Everywhere:
      return change_formats(Format::kE5m2, Format::kE5m2, precision);
    case FaultKind::kCoarseRecipe:
      precision.choose(Recipe::kCurrent);
      return change_formats(format, format, precision);
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

FaultView::ResolvedFault::ResolvedFault(Fault given, const std::vector<std::string>& model_sites,
                                        int layers)
    : fault(std::move(given)) {
  for (const std::string& site : model_sites) sites.push_back(is_about(fault, site, layers));
  if (!fault.format.empty()) format = format_from_name(fault.format);
  if (!fault.gemm.empty()) gemm = gemm_from_name(fault.gemm);
  if (fault.tensor != "output") tensor = tensor_role_from_name(fault.tensor);
}

FaultView::FaultView(std::vector<Fault> faults, const std::vector<std::string>& sites, int layers) {
  for (Fault& fault : faults) faults_.emplace_back(std::move(fault), sites, layers);
}

const FaultView::ResolvedFault* FaultView::find(FaultKind kind, int site, int64_t step) const {
  for (size_t i = faults_.size(); i-- > 0;) {
    if (faults_[i].acts(kind, step) && faults_[i].at(site)) return &faults_[i];
  }
  return nullptr;
}

const FaultView::ResolvedFault* FaultView::find(FaultKind kind, int site, Gemm gemm,
                                                int64_t step) const {
  for (size_t i = faults_.size(); i-- > 0;) {
    const ResolvedFault& it = faults_[i];
    if (it.acts(kind, step) && it.at(site) && it.gemm.value_or(gemm) == gemm) return &it;
  }
  return nullptr;
}

const std::vector<SitePrecision>& FaultView::precisions(const std::vector<SitePrecision>& planned,
                                                        int64_t step,
                                                        std::vector<SitePrecision>& room) const {
  const auto acts = [&](const ResolvedFault& it) {
    return changes_precision(it.fault.kind) && it.fault.active(step);
  };
  if (std::ranges::none_of(faults_, acts)) return planned;
  room = planned;
  for (const ResolvedFault& it : faults_) {
    if (!acts(it)) continue;
    for (size_t site = 0; site < room.size(); ++site) {
      if (!it.sites[site]) continue;
      // A GEMM in BF16 does not read what is changed.
      for (Gemm gemm : kGemms) change(it.fault.kind, it.format, room[site][gemm]);
    }
  }
  return room;
}

int FaultView::scale_shift(int site, TensorRole role, int64_t step) const {
  int sum = 0;
  for (const ResolvedFault& it : faults_) {
    if (!it.fault.active(step) || !it.at(site)) continue;
    const FaultKind kind = it.fault.kind;
    const bool shifts = (kind == FaultKind::kScaleShift && it.tensor == role) ||
                        (kind == FaultKind::kGradientUnderflow && role == TensorRole::kGradient) ||
                        kind == FaultKind::kCoarseRecipe;
    if (shifts)
      sum += kind == FaultKind::kScaleShift ? grown(it.fault, step) : it.fault.log2_factor;
  }
  return sum;
}

bool FaultView::frozen(int site, TensorRole role, int64_t step) const {
  return std::ranges::any_of(faults_, [&](const ResolvedFault& it) {
    return it.acts(FaultKind::kFrozenAmax, step) && it.at(site) && it.tensor == role;
  });
}

std::optional<OutlierChannel> FaultView::outlier(int site, int64_t step) const {
  const ResolvedFault* it = find(FaultKind::kOutlierChannel, site, step);
  if (it == nullptr) return std::nullopt;
  return OutlierChannel{it->fault.element, grown(it->fault, step)};
}

bool FaultView::stale(int site, int64_t step) const {
  return find(FaultKind::kStaleWeight, site, step) != nullptr;
}

bool FaultView::refreshes(int site, int64_t step) const {
  const ResolvedFault* it = find(FaultKind::kStaleWeight, site, step);
  if (it == nullptr) return false;
  const int64_t since = step - it->fault.stretch_start(step);
  return it->fault.steps == 0 ? since == 0 : since % it->fault.steps == 0;
}

std::optional<TermRange> FaultView::dropped(int site, Gemm gemm, int64_t step) const {
  const ResolvedFault* it = find(FaultKind::kDroppedKBlock, site, gemm, step);
  if (it == nullptr) return std::nullopt;
  return TermRange{it->fault.element, it->fault.terms};
}

std::optional<Accumulation> FaultView::accumulation(int site, Gemm gemm, int64_t step) const {
  const ResolvedFault* it = find(FaultKind::kWrongAccumulation, site, gemm, step);
  if (it == nullptr) return std::nullopt;
  const int bits = it->fault.fraction_bits;
  return Accumulation{.hopper = true,
                      .promote_every = kNeverPromoted,
                      .sum = {.fraction_bits = bits, .result_bits = bits}};
}

const Fault* FaultView::stuck_output(int site, int64_t step) const {
  if (role_ == EngineRole::kReplay) return nullptr;
  for (const ResolvedFault& it : faults_) {
    if (it.acts(FaultKind::kStuckBit, step) && !it.tensor && it.at(site)) return &it.fault;
  }
  return nullptr;
}

std::vector<const Fault*> FaultView::flipped_gradients(int64_t step) const {
  std::vector<const Fault*> flips;
  if (role_ != EngineRole::kLive) return flips;
  for (const ResolvedFault& it : faults_) {
    if (it.fault.kind == FaultKind::kBitFlip && it.tensor == TensorRole::kGradient &&
        step == it.fault.start_step) {
      flips.push_back(&it.fault);
    }
  }
  return flips;
}

std::vector<const Fault*> FaultView::struck_weights(int64_t step) const {
  std::vector<const Fault*> struck;
  if (role_ == EngineRole::kReplay) return struck;
  for (const ResolvedFault& it : faults_) {
    const bool flips = it.fault.kind == FaultKind::kBitFlip && it.tensor != TensorRole::kGradient &&
                       role_ == EngineRole::kLive && step == it.fault.start_step;
    const bool sticks = it.acts(FaultKind::kStuckBit, step) && it.tensor == TensorRole::kWeight;
    if (flips || sticks) struck.push_back(&it.fault);
  }
  return struck;
}

bool FaultView::corrupt(int64_t step) const {
  return std::ranges::any_of(
      faults_, [&](const ResolvedFault& it) { return it.acts(FaultKind::kCorruptBatch, step); });
}

int64_t FaultView::batch_of(int64_t step) const {
  int64_t batch = step;
  for (const ResolvedFault& it : faults_) {
    if (it.acts(FaultKind::kRepeatedBatch, step)) batch = it.fault.stretch_start(step);
  }
  if (role_ != EngineRole::kLive) return batch;
  for (const ResolvedFault& it : faults_) {
    if (it.acts(FaultKind::kSkippedBatch, step)) batch += it.fault.steps;
  }
  return batch;
}

double FaultView::learning_rate_factor(int64_t step) const {
  double factor = 1;
  for (const ResolvedFault& it : faults_) {
    if (it.acts(FaultKind::kLearningRateSpike, step)) factor *= it.fault.factor;
  }
  return factor;
}

int FaultView::wire_shift(int64_t step) const {
  int sum = 0;
  for (const ResolvedFault& it : faults_) {
    if (it.acts(FaultKind::kWireScaleShift, step)) sum += it.fault.log2_factor;
  }
  return sum;
}

std::optional<MomentRounding> FaultView::second_moment(int site, int64_t step) const {
  const ResolvedFault* it = find(FaultKind::kFp8SecondMoment, site, step);
  if (it == nullptr) return std::nullopt;
  return MomentRounding{it->format, it->fault.log2_factor};
}

}  // namespace gnomon
