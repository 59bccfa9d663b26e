#include "trainer/engine/normal.h"

#include <array>
#include <cmath>
#include <numbers>

#include "base/philox.h"

namespace gnomon {
namespace {

constexpr uint64_t kWeightStream = 0x77656967;   // "weig"
constexpr uint64_t kPerturbStream = 0x70657274;  // "pert"
constexpr size_t kAlone = size_t{1} << 20;       // so many values are one thread's work

// Two from one draw.
std::array<double, 2> normal_pair(uint64_t key, uint64_t stream, uint64_t pair, double deviation) {
  const std::array<uint32_t, 4> words = philox(key, stream, pair);
  const double u = (static_cast<double>(words[0]) + 0.5) / 4294967296.0;
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(words[1]) / 4294967296.0;
  const double radius = deviation * std::sqrt(-2.0 * std::log(u));
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

}  // namespace

void fill_normal(uint64_t seed, uint64_t stream, double deviation, std::span<float> values) {
  const uint64_t key = seed ^ (kWeightStream << 32);
  // A pure function of the index: the number of threads changes no bit.
#pragma omp parallel for schedule(static) if (values.size() > kAlone)
  for (size_t i = 0; i < values.size(); i += 2) {
    const auto [first, second] = normal_pair(key, stream, i / 2, deviation);
    values[i] = static_cast<float>(first);
    if (i + 1 < values.size()) values[i + 1] = static_cast<float>(second);
  }
}

void perturb_values(uint64_t seed, int64_t first, double scale, std::span<float> values) {
  const uint64_t key = seed ^ (kPerturbStream << 32);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto element = static_cast<uint64_t>(first) + i;
    const double relative = normal_pair(key, 0, element / 2, scale)[element % 2];
    values[i] = static_cast<float>(static_cast<double>(values[i]) * (1.0 + relative));
  }
}

}  // namespace gnomon
