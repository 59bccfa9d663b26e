#include "controller/auth/http_error.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace gnomon {

HttpError::HttpError(int status, std::string title, std::string detail, std::string accepted,
                     std::optional<AuditNote> audit)
    : Error(title + ": " + detail), audit_(std::move(audit)) {
  problem_.title = std::move(title);
  problem_.status = status;
  problem_.detail = std::move(detail);
  problem_.accepted = std::move(accepted);
}

HttpError& HttpError::retry_after(double seconds) {
  retry_after_ = seconds;
  return *this;
}

HttpError value_refused(const std::string& detail, const std::string& accepted) {
  return {400, "Value not accepted", detail, accepted};
}

void require(bool condition, const std::string& detail, const std::string& accepted) {
  if (!condition) throw value_refused(detail, accepted);
}

void require_step(int64_t value, std::string_view member, int64_t least) {
  if (value >= least && value <= kStepMax) return;
  throw value_refused(fmt::format("{} is {}", member, value),
                      fmt::format("{} to {}", least, kStepMax));
}

HttpError unknown_run(const std::string& text) {
  return HttpError(404, "Unknown run", fmt::format("there is no run \"{}\" in this ledger", text),
                   "a run of GET /v1/runs, as \"run-3\" or \"3\"");
}

std::optional<int64_t> run_number(std::string_view digits) {
  if (digits.starts_with("run-")) {
    digits.remove_prefix(4);
  }
  int64_t id = 0;
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), id);
  if (error != std::errc() || end != digits.data() + digits.size() || id <= 0) {
    return std::nullopt;
  }
  return id;
}

int64_t parse_run_id(const std::string& text) {
  const std::optional<int64_t> id = run_number(text);
  if (!id) throw unknown_run(text);
  return *id;
}

std::string run_name(int64_t run) { return fmt::format("run-{}", run); }

}  // namespace gnomon
