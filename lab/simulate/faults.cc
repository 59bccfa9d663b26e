#include "lab/simulate/faults.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/philox.h"

namespace gnomon::simulate {
namespace {

constexpr uint64_t kFaultStream = 100;  // and the kinds after it
constexpr double kAnotherSite = 0.3;    // chance of one more guilty site
constexpr int kSitesMax = 3;
constexpr double kNotFinite = 0.3;  // chance of an overflow
constexpr double kNatsLow = 1, kNatsHigh = 5;
constexpr double kJumpLow = 0.5, kJumpHigh = 20;       // per cent, of a flipped bit
constexpr double kSkippedLow = 0.5, kSkippedHigh = 5;  // of other tokens
constexpr double kDriftLow = 4, kDriftHigh = 20;

uint64_t draw_sites(Draw& draw, int layers) {
  const int count = 7 * layers + 1;
  uint64_t sites = 0;
  for (int i = 0; i < kSitesMax; ++i) {
    sites |= uint64_t{1} << static_cast<int>(draw.uniform() * count);
    if (draw.uniform() > kAnotherSite) break;
  }
  return sites;
}

void draw_size(Draw& draw, const RunModel& model, Fault& fault) {
  switch (fault.kind) {
    case FaultKind::kNumerics:
    case FaultKind::kKernelBug:
      fault.size = draw.log_uniform(model.size_low, model.size_high) / kSizeSteps;
      fault.to =
          draw.uniform() < model.lasting_share
              ? kNeverEnds
              : fault.from + 1 + static_cast<int64_t>(draw.exponential() * model.brief_steps);
      return;
    case FaultKind::kOverflow:
      fault.size = draw.uniform() < kNotFinite ? HUGE_VAL : draw.log_uniform(kNatsLow, kNatsHigh);
      return;
    case FaultKind::kScaleDrift:
      fault.size = draw.log_uniform(kDriftLow, kDriftHigh);
      fault.to = kNeverEnds;
      return;
    case FaultKind::kBitFlip:
      fault.size = draw.log_uniform(kJumpLow, kJumpHigh);
      return;
    case FaultKind::kHardware:
      fault.size = draw.log_uniform(kJumpLow, kJumpHigh);
      fault.to = kNeverEnds;
      return;
    case FaultKind::kSkippedBatch:
      fault.size = draw.log_uniform(kSkippedLow, kSkippedHigh);
      return;
    case FaultKind::kSpike:
      fault.size = draw.log_uniform(kNatsLow, kNatsHigh);
      return;
  }
}

}  // namespace

double Draw::uniform() {
  const auto words = philox(seed_, stream_, index_++);
  const uint64_t bits = (uint64_t{words[0]} << 21) ^ (words[1] >> 11);
  return (static_cast<double>(bits) + 0.5) * 0x1p-53;
}

double Draw::exponential() { return -std::log(uniform()); }

double Draw::gaussian() {
  const double radius = std::sqrt(2 * exponential());
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

double Draw::log_uniform(double low, double high) { return low * std::pow(high / low, uniform()); }

std::vector<Fault> draw_faults(const RunModel& model, uint64_t seed) {
  std::vector<Fault> faults;
  for (size_t kind = 0; kind < kFaultKinds; ++kind) {
    if (!(model.hazards[kind] > 0)) continue;
    Draw draw(seed, kFaultStream + kind);
    double at = 0;
    for (int64_t count = 0; count < kFaultsMax; ++count) {
      at += draw.exponential() / model.hazards[kind];
      if (at > 2 * static_cast<double>(model.steps)) break;
      Fault fault;
      fault.kind = static_cast<FaultKind>(kind);
      fault.from = 1 + static_cast<int64_t>(at);
      fault.to = fault.from + 1;
      fault.sites = draw_sites(draw, model.layers);
      draw_size(draw, model, fault);
      faults.push_back(fault);
    }
  }
  std::ranges::stable_sort(faults, {}, &Fault::from);
  return faults;
}

}  // namespace gnomon::simulate
