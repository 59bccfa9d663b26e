// Which refusals go on record. The audit log is never trimmed, and whoever repeats a request that
// is refused would fill it: of each kind of refusal, of each run, 20 are noted at once and then one
// a minute, which says how many were left out.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "controller/auth/http_error.h"
#include "controller/auth/rate_limit.h"

namespace gnomon {

class AuditNoteLimiter {
 public:
  // The note as it is to be written; nothing when it is left out. `now` in steady clock seconds.
  std::optional<AuditNote> admit(AuditNote note, double now);

 private:
  RateLimiter rates_;
  std::mutex mutex_;
  std::unordered_map<std::string, int64_t> left_out_;
};

}  // namespace gnomon
