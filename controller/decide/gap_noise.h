// Noise that D may have about its mean, as the tests, the benchmark and simulations of the gap
// detector draw it. Every shape has mean 0 and standard deviation 1.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace gnomon::decide {

struct NoiseShape {
  std::string_view name;
  bool symmetric;
  double correlation;         // of neighbours; 0 = independent
  double (*density)(double);  // null when it is not needed or there is none
};

// gaussian, t3, t4, t6, laplace, contaminated (5% with five times the deviation), rounded (to
// half deviations: many ties), skewed_right and skewed_left (exponential), and ar_0.1 to ar_0.6
// (Gaussian, autoregressive: neighbours have this correlation).
const std::vector<NoiseShape>& noise_shapes();
// Throws ConfigError naming the shapes there are.
const NoiseShape& noise_shape(std::string_view name);

// The same (shape, seed) gives the same numbers.
class GapNoise {
 public:
  GapNoise(const NoiseShape& shape, uint64_t seed);
  double next();

 private:
  double uniform();  // in (0, 1)
  double gaussian();
  double exponential();

  size_t kind_;
  double correlation_;
  uint64_t seed_;
  uint64_t drawn_ = 0;
  double spare_uniform_ = -1;
  double spare_gaussian_ = 0;
  bool spare_ = false;
  double last_ = 0;
};

}  // namespace gnomon::decide
