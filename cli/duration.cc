#include "cli/duration.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include "base/errors.h"

namespace gnomon::cli {
namespace {

struct Unit {
  char letter;
  double seconds;
};
constexpr std::array<Unit, 4> kUnits = {{{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}}};

// Takes one number and its unit off the front of `rest`; NaN when there is none.
double parse_part(std::string_view& rest) {
  double number = 0;
  const char* end = rest.data() + rest.size();
  auto [next, error] = std::from_chars(rest.data(), end, number, std::chars_format::fixed);
  if (error != std::errc() || next == end) return std::nan("");
  for (const Unit& unit : kUnits) {
    if (*next != unit.letter) continue;
    rest.remove_prefix(static_cast<size_t>(next - rest.data()) + 1);
    return number >= 0 ? number * unit.seconds : std::nan("");
  }
  return std::nan("");
}

}  // namespace

double parse_duration(const std::string& option, const std::string& text, double longest_seconds) {
  std::string_view rest = text;
  double seconds = 0;
  do {
    seconds += parse_part(rest);
  } while (!rest.empty() && std::isfinite(seconds));
  if (!(seconds > 0 && seconds <= longest_seconds)) {
    throw ConfigError("", 0, option, text.empty() ? "\"\"" : text,
                      fmt::format("a time with its unit, above 0 and at most {:g}d: 90s, 15m, 2h, "
                                  "3d or 1h30m",
                                  longest_seconds / 86400));
  }
  return seconds;
}

std::string duration_in_words(double seconds) {
  const Unit* unit = &kUnits[0];
  for (const Unit& candidate : kUnits) {
    if (seconds >= 2 * candidate.seconds || seconds == candidate.seconds) unit = &candidate;
  }
  return fmt::format("{:g} {}", std::round(10 * seconds / unit->seconds) / 10,
                     unit->letter == 'm' ? "min" : std::string(1, unit->letter));
}

}  // namespace gnomon::cli
