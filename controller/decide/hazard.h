// How often FP8 goes wrong, learned while the run goes on: a constant rate of faults per FP8 step
// with a Gamma prior, which the counts of steps and faults turn into a Gamma posterior.
#pragma once

#include <cstdint>

namespace gnomon::decide {

// Before anything is seen the mean is 1/20k with a 90% range from 1/5.1M to 1/5.2k: shape ½ is
// Jeffreys' for a rate, and 10,000 steps let one quiet day speak louder than the prior.
struct Hazard {
  double prior_faults = 0.5;
  double prior_steps = 10'000;
  int64_t steps = 0;   // in FP8
  int64_t faults = 0;  // that led to an action
};

// Throws ConfigError when prior_faults is not in [1e-3, 1e6] or prior_steps not in [0.1, 1e15].
void check_prior(const Hazard& hazard);

// Negative counts are not accepted: false, and nothing changes.
bool observe_steps(Hazard& hazard, int64_t steps);
bool observe_faults(Hazard& hazard, int64_t faults);

// Posterior mean of Gamma(prior_faults + faults, prior_steps + steps), faults per step: what to
// optimise with, since the expected cost of a cadence is to first order linear in the hazard.
double hazard_mean(const Hazard& hazard);
// `probability` in (0, 1); throws ConfigError otherwise.
double hazard_quantile(const Hazard& hazard, double probability);
// The probability that it is above `limit`, faults per step; 1 for a limit of 0 or less.
double hazard_above(const Hazard& hazard, double limit);

// A prior with this mean, worth prior_steps = prior_faults / mean. Throws ConfigError when the mean
// is not in (0, 1].
Hazard hazard_prior(double mean, double prior_faults = 0.5);

}  // namespace gnomon::decide
