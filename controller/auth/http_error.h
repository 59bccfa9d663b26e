// A request that the controller refuses, as the problem document (RFC 9457) its sender gets. Thrown
// from inside a ledger write it undoes that write; `audit`, where given, is then written by itself,
// so that the refusal is on record.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/errors.h"
#include "protocol/records.h"

namespace gnomon {

struct AuditNote {
  std::optional<int64_t> run;
  std::string what;  // conflicting_step, stale_lease, ...
  std::string detail;
};

class HttpError : public Error {
 public:
  // `accepted` says what would have been accepted; may be empty.
  HttpError(int status, std::string title, std::string detail, std::string accepted = {},
            std::optional<AuditNote> audit = std::nullopt);
  const Problem& problem() const { return problem_; }
  const std::optional<AuditNote>& audit() const { return audit_; }
  // Seconds after which the same request may be sent again; 0: nothing is said of it.
  HttpError& retry_after(double seconds);
  double retry_after() const { return retry_after_; }

 private:
  Problem problem_;
  std::optional<AuditNote> audit_;
  double retry_after_ = 0;
};

// Refuses a value in a message: 400.
HttpError value_refused(const std::string& detail, const std::string& accepted);
// Throws it unless `condition`.
void require(bool condition, const std::string& detail, const std::string& accepted);
// The same, "`member` is `value`", for what stands in the way of every step: its texts are made
// only where they are needed.
template <typename Value>
void require(bool condition, std::string_view member, const Value& value,
             std::string_view accepted) {
  if (condition) return;
  if constexpr (std::is_convertible_v<const Value&, std::string_view>) {
    throw value_refused(fmt::format("{} is \"{}\"", member, value), std::string(accepted));
  } else {
    throw value_refused(fmt::format("{} is {}", member, value), std::string(accepted));
  }
}
// A step, or a count of them, from `least` on: more than any run has, at a hundred a second for
// four months, and far below where sums of such would overflow.
inline constexpr int64_t kStepMax = 1'000'000'000;
void require_step(int64_t value, std::string_view member, int64_t least);

// The run's id from "run-3" or "3". Throws HttpError (404) on anything else.
int64_t parse_run_id(const std::string& text);
// The same, nothing where it is none.
std::optional<int64_t> run_number(std::string_view text);
std::string run_name(int64_t run);  // "run-3"
HttpError unknown_run(const std::string& text);

}  // namespace gnomon
