#include "controller/decide/gap_noise.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/errors.h"
#include "base/philox.h"

namespace gnomon::decide {
namespace {

using std::numbers::pi;

constexpr double kContaminated = 0.05;
constexpr double kContamination = 5;
constexpr double kRounding = 0.5;

double gaussian_density(double z) { return std::exp(-z * z / 2) / std::sqrt(2 * pi); }

template <int freedom>
double t_density(double z) {
  const double nu = freedom;
  const double scale = std::sqrt(nu / (nu - 2));
  const double v = z * scale;
  return scale * std::tgamma((nu + 1) / 2) / (std::sqrt(nu * pi) * std::tgamma(nu / 2)) *
         std::pow(1 + v * v / nu, -(nu + 1) / 2);
}

double laplace_density(double z) {
  return std::exp(-std::numbers::sqrt2 * std::abs(z)) / std::numbers::sqrt2;
}

double contaminated_scale() {
  return std::sqrt(1 - kContaminated + kContaminated * kContamination * kContamination);
}

double contaminated_density(double z) {
  const double scale = contaminated_scale();
  const double v = z * scale;
  return scale * ((1 - kContaminated) * gaussian_density(v) +
                  kContaminated * gaussian_density(v / kContamination) / kContamination);
}

double right_density(double z) { return z >= -1 ? std::exp(-(z + 1)) : 0; }
double left_density(double z) { return right_density(-z); }

enum Kind : size_t {
  kGaussian,
  kT3,
  kT4,
  kT6,
  kLaplace,
  kContaminatedKind,
  kRounded,
  kRight,
  kLeft
};

}  // namespace

const std::vector<NoiseShape>& noise_shapes() {
  static const std::vector<NoiseShape> shapes = {
      {"gaussian", true, 0, gaussian_density}, {"t3", true, 0, t_density<3>},
      {"t4", true, 0, t_density<4>},           {"t6", true, 0, t_density<6>},
      {"laplace", true, 0, laplace_density},   {"contaminated", true, 0, contaminated_density},
      {"rounded", true, 0, nullptr},           {"skewed_right", false, 0, right_density},
      {"skewed_left", false, 0, left_density}, {"ar_0.1", true, 0.1, nullptr},
      {"ar_0.2", true, 0.2, nullptr},          {"ar_0.3", true, 0.3, nullptr},
      {"ar_0.4", true, 0.4, nullptr},          {"ar_0.6", true, 0.6, nullptr},
  };
  return shapes;
}

const NoiseShape& noise_shape(std::string_view name) {
  std::vector<std::string_view> names;
  for (const NoiseShape& shape : noise_shapes()) {
    if (shape.name == name) return shape;
    names.push_back(shape.name);
  }
  throw ConfigError("", 0, "noise", std::string(name),
                    fmt::format("one of {}", fmt::join(names, ", ")));
}

GapNoise::GapNoise(const NoiseShape& shape, uint64_t seed)
    : kind_(static_cast<size_t>(&noise_shape(shape.name) - noise_shapes().data())),
      correlation_(shape.correlation),
      seed_(seed) {
  if (correlation_ > 0) last_ = gaussian();
}

double GapNoise::uniform() {
  if (spare_uniform_ >= 0) {
    const double value = spare_uniform_;
    spare_uniform_ = -1;
    return value;
  }
  const auto words = philox(seed_, kind_, drawn_++);
  const auto unit = [](uint32_t high, uint32_t low) {
    const uint64_t bits = (uint64_t{high} << 21) ^ (low >> 11);
    return (static_cast<double>(bits) + 0.5) * 0x1p-53;
  };
  spare_uniform_ = unit(words[2], words[3]);
  return unit(words[0], words[1]);
}

double GapNoise::gaussian() {
  if (spare_) {
    spare_ = false;
    return spare_gaussian_;
  }
  const double radius = std::sqrt(2 * exponential());
  const double angle = 2 * pi * uniform();
  spare_gaussian_ = radius * std::sin(angle);
  spare_ = true;
  return radius * std::cos(angle);
}

double GapNoise::exponential() { return -std::log(uniform()); }

double GapNoise::next() {
  const auto student = [this](int freedom) {
    double squares = freedom % 2 == 1 ? std::pow(gaussian(), 2) : 0;
    for (int i = 0; i < freedom / 2; ++i) squares += 2 * exponential();
    return gaussian() / std::sqrt(squares / (freedom - 2));
  };
  if (correlation_ > 0) {
    last_ = correlation_ * last_ + std::sqrt(1 - correlation_ * correlation_) * gaussian();
    return last_;
  }
  switch (static_cast<Kind>(kind_)) {
    case kGaussian:
      return gaussian();
    case kT3:
      return student(3);
    case kT4:
      return student(4);
    case kT6:
      return student(6);
    case kLaplace:
      return (exponential() - exponential()) / std::numbers::sqrt2;
    case kContaminatedKind:
      return (uniform() < kContaminated ? kContamination : 1.0) * gaussian() / contaminated_scale();
    case kRounded: {
      // Sheppard's correction keeps the deviation at 1.
      const double before = std::sqrt(1 - kRounding * kRounding / 12);
      return std::round(gaussian() * before / kRounding) * kRounding;
    }
    case kRight:
      return exponential() - 1;
    case kLeft:
      return 1 - exponential();
  }
  return 0;
}

}  // namespace gnomon::decide
