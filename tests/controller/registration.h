// The smallest registration that the controller accepts.
#pragma once

#include "protocol/records.h"

namespace gnomon {

inline RunRegistration small_registration() {
  RunRegistration registration;
  registration.name = "small";
  registration.job_id = "1";
  registration.base_plan = "version = 1\n[[rule]]\nmatch = \"*\"\nfprop = \"fp8\"\n";
  registration.sites = {"lm_head"};
  registration.layers = 1;
  registration.checkpoint_every = 5;
  registration.total_steps = 100;
  return registration;
}

}  // namespace gnomon
