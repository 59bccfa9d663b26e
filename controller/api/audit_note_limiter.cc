#include "controller/api/audit_note_limiter.h"

#include <fmt/format.h>

#include <utility>

namespace gnomon {
namespace {

constexpr Rate kNoted{1.0 / 60, 20};
constexpr size_t kKeysMax = 4096;  // counted; beyond them what is left out is not counted

}  // namespace

std::optional<AuditNote> AuditNoteLimiter::admit(AuditNote note, double now) {
  const std::string key = fmt::format("{}/{}", note.run.value_or(0), note.what);
  const bool taken = rates_.acquire(key, kNoted, now) == 0;
  const std::lock_guard lock(mutex_);
  const auto found = left_out_.find(key);
  if (!taken) {
    if (found != left_out_.end()) {
      ++found->second;
    } else if (left_out_.size() < kKeysMax) {
      left_out_[key] = 1;
    }
    return std::nullopt;
  }
  if (found != left_out_.end()) {
    note.detail += fmt::format("; {} more of this kind before it were not noted", found->second);
    left_out_.erase(found);
  }
  return note;
}

}  // namespace gnomon
