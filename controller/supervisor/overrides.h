// What operators ask for by hand: overrides and policies.
#pragma once

#include <cstdint>
#include <string>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Throws HttpError: 400 for values, 409 when it makes no sense now; ConfigError for the plan.
OverrideAccepted override_run(WriteContext write, int64_t id, const OverrideRequest& request);
// `toml` is checked; throws ConfigError.
void set_policy(WriteContext write, int64_t id, const std::string& toml);

}  // namespace gnomon
