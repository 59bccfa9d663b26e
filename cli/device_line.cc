#include "cli/device_line.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "base/progress.h"
#include "cli/server.h"
#include "cli/table.h"

namespace gnomon::cli {
namespace {

using Row = boost::json::object;

bool has(const Row& row, const char* key) { return std::isfinite(number_of(row, key)); }

// "520 of 700 W", or "520 W" where the limit is not known.
std::string power(const Row& health) {
  const double watts = number_of(health, "power_watts");
  if (!has(health, "power_limit_watts")) return fmt::format("{:.0f} W", watts);
  return fmt::format("{:.0f} of {:.0f} W", watts, number_of(health, "power_limit_watts"));
}

std::string errors(const Row& health) {
  std::string corrected, uncorrected;
  if (has(health, "ecc_corrected"))
    corrected = fmt::format("{} corrected", integer_of(health, "ecc_corrected"));
  if (has(health, "ecc_uncorrected"))
    uncorrected = fmt::format("{} uncorrected", integer_of(health, "ecc_uncorrected"));
  const char* between = corrected.empty() || uncorrected.empty() ? "" : ", ";
  return fmt::format("ECC errors: {}{}{}", corrected, between, uncorrected);
}

bool is_true(const Row& health, const char* key) {
  const boost::json::value* value = health.if_contains(key);
  return value != nullptr && value->is_bool() && value->get_bool();
}

// Why the clock is held back; that there is nothing to do is left out.
std::string throttled(const Row& health) {
  const boost::json::value* reasons = health.if_contains("throttle_reasons");
  std::string words;
  if (reasons == nullptr || !reasons->is_array()) return words;
  for (const boost::json::value& reason : reasons->get_array()) {
    if (!reason.is_string() || reason.get_string() == "idle") continue;
    words += (words.empty() ? "throttled by " : ", ") + std::string(reason.get_string());
  }
  return words;
}

std::vector<std::string> facts(const Row& health) {
  std::vector<std::string> facts;
  if (has(health, "sm_clock_mhz"))
    facts.push_back(fmt::format("{} MHz", integer_of(health, "sm_clock_mhz")));
  if (has(health, "power_watts")) facts.push_back(power(health));
  if (has(health, "temperature_celsius"))
    facts.push_back(fmt::format("{} °C", integer_of(health, "temperature_celsius")));
  if (has(health, "utilization_percent"))
    facts.push_back(fmt::format("{}% busy", integer_of(health, "utilization_percent")));
  if (has(health, "memory_used_bytes") && has(health, "memory_total_bytes")) {
    facts.push_back(fmt::format("{} of {}", format_bytes(number_of(health, "memory_used_bytes")),
                                format_bytes(number_of(health, "memory_total_bytes"))));
  }
  if (has(health, "ecc_corrected") || has(health, "ecc_uncorrected"))
    facts.push_back(errors(health));
  if (std::string words = throttled(health); !words.empty()) facts.push_back(std::move(words));
  if (is_true(health, "remapped_rows_pending")) facts.emplace_back("memory rows wait for a reset");
  if (is_true(health, "remapped_rows_failure"))
    facts.emplace_back("memory rows could not be replaced");
  return facts;
}

}  // namespace

std::string device_line(const Row& row, double now) {
  const boost::json::value* body = row.if_contains("body");
  const Row health = body != nullptr && body->is_object() ? body->get_object() : Row();
  std::string line = "GPU " + text_of(row, "device");
  if (!text_of(row, "host").empty()) line += " of " + text_of(row, "host");
  if (!text_of(health, "name").empty()) line += fmt::format(" ({})", text_of(health, "name"));
  const std::string error = text_of(health, "error");
  const std::vector<std::string> said = facts(health);
  line += ": ";
  line += !error.empty() ? error
          : said.empty() ? "tells nothing"
                         : fmt::format("{}", fmt::join(said, ", "));
  const double age = now - number_of(row, "sampled_at");
  return age > 0 ? fmt::format("{}; {} ago", line, format_duration(age)) : line;
}

}  // namespace gnomon::cli
