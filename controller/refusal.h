// A request that the controller refuses, as the problem document (RFC 9457) its sender gets. Thrown
// from inside a ledger write it undoes that write; `audit`, where given, is then written by itself,
// so that the refusal is on record.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/errors.h"
#include "protocol/messages.h"

namespace gnomon {

struct AuditNote {
  std::optional<int64_t> run;
  std::string what;  // conflicting_step, stale_lease, ...
  std::string detail;
};

class Refusal : public Error {
 public:
  // `accepted` says what would have been accepted; may be empty.
  Refusal(int status, std::string title, std::string detail, std::string accepted = {},
          std::optional<AuditNote> audit = std::nullopt);
  const Problem& problem() const { return problem_; }
  const std::optional<AuditNote>& audit() const { return audit_; }
  // Seconds after which the same request may be sent again; 0: nothing is said of it.
  Refusal& retry_after(double seconds);
  double retry_after() const { return retry_after_; }

 private:
  Problem problem_;
  std::optional<AuditNote> audit_;
  double retry_after_ = 0;
};

// The run's id from "run-3" or "3". Throws Refusal (404) on anything else.
int64_t parse_run_id(const std::string& text);
// The same, nothing where it is none.
std::optional<int64_t> run_number(std::string_view text);
std::string run_name(int64_t run);  // "run-3"
Refusal unknown_run(const std::string& text);

}  // namespace gnomon
