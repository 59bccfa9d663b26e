#include "controller/decide/hazard.h"

#include <fmt/format.h>

#include <boost/math/special_functions/gamma.hpp>

#include "base/errors.h"

namespace gnomon::decide {
namespace {

double shape(const Hazard& hazard) {
  return hazard.prior_faults + static_cast<double>(hazard.faults);
}
double steps(const Hazard& hazard) {
  return hazard.prior_steps + static_cast<double>(hazard.steps);
}

}  // namespace

void check_prior(const Hazard& hazard) {
  if (!(hazard.prior_faults >= 1e-3 && hazard.prior_faults <= 1e6)) {
    throw ConfigError("", 0, "prior faults", fmt::format("{}", hazard.prior_faults),
                      "a number from 0.001 to 1e6");
  }
  if (!(hazard.prior_steps >= 0.1 && hazard.prior_steps <= 1e15)) {
    throw ConfigError("", 0, "prior steps", fmt::format("{}", hazard.prior_steps),
                      "a number of steps from 0.1 to 1e15");
  }
}

bool observe_steps(Hazard& hazard, int64_t steps) {
  if (steps < 0) return false;
  hazard.steps += steps;
  return true;
}

bool observe_faults(Hazard& hazard, int64_t faults) {
  if (faults < 0) return false;
  hazard.faults += faults;
  return true;
}

double hazard_mean(const Hazard& hazard) { return shape(hazard) / steps(hazard); }

double hazard_quantile(const Hazard& hazard, double probability) {
  if (!(probability > 0 && probability < 1)) {
    throw ConfigError("", 0, "probability", fmt::format("{}", probability),
                      "a number between 0 and 1");
  }
  check_prior(hazard);
  return boost::math::gamma_p_inv(shape(hazard), probability) / steps(hazard);
}

double hazard_above(const Hazard& hazard, double limit) {
  check_prior(hazard);
  return limit > 0 ? boost::math::gamma_q(shape(hazard), limit * steps(hazard)) : 1;
}

Hazard hazard_prior(double mean, double prior_faults) {
  if (!(mean > 0 && mean <= 1)) {
    throw ConfigError("", 0, "hazard", fmt::format("{}", mean),
                      "faults per step, above 0 and at most 1");
  }
  Hazard hazard;
  hazard.prior_faults = prior_faults;
  hazard.prior_steps = prior_faults / mean;
  check_prior(hazard);
  return hazard;
}

}  // namespace gnomon::decide
