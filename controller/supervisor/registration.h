// How runs come onto the record, and which process of a trainer speaks for one.
#pragma once

#include <string>

#include "controller/supervisor/run_cache.h"
#include "protocol/records.h"

namespace gnomon {

// Which process of a trainer speaks; docs/api.md.
struct TrainerProcess {
  std::string incarnation = {};  // empty: it does not say
  double running_seconds = 0;    // when it registers: since its start
};

// Throws HttpError. A repeat changes nothing. Of two processes that say who they are, the one that
// started later has the run from then on.
RunRegistered register_run(WriteContext write, const RunRegistration& registration,
                           const TrainerProcess& process = {});

}  // namespace gnomon
