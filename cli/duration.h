// Spans of time as operators type them.
#pragma once

#include <string>

namespace gnomon::cli {

// Seconds of "90s", "15m", "2h", "3d" or a sequence of such ("1h30m"). Throws ConfigError naming
// `option` for anything else, and for what is not above 0 and at most `longest_seconds` (90 days:
// as long as the controller lets an override hold).
double parse_duration(const std::string& option, const std::string& text,
                      double longest_seconds = 90.0 * 86400);

// In the largest unit that it has two of (or exactly one), with at most one decimal: "90 s",
// "15 min", "2 h", "1 d".
std::string duration_in_words(double seconds);

}  // namespace gnomon::cli
