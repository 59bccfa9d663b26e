// What a verifier is called by, and what a run wants of whoever replays it: labels, and
// requirements over them.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

// "pool" → "team-a".
using Labels = std::map<std::string, std::string, std::less<>>;

// A verifier's fingerprint says these, so that nobody calls itself what it is not.
inline constexpr std::string_view kBackendLabel = "backend";
inline constexpr std::string_view kDeviceLabel = "device";

inline constexpr size_t kLabelsMax = 16;
inline constexpr size_t kLabelKeyMax = 64;
inline constexpr size_t kLabelValueMax = 200;
inline constexpr size_t kRequirementsMax = 16;

// What would be accepted in place of such a label, in words; empty when it is fine: a key of 1 to
// 64 characters of a-z, 0-9, '_', '.' and '-', neither "backend" nor "device"; a value of at most
// 200 bytes without control characters.
std::string label_error(std::string_view key, std::string_view value);
// The same of a requirement: "key=glob" with '*' (any text) and '?' (a character).
std::string requirement_error(std::string_view requirement);
// True when all requirements hold. A label that is not there is empty text. The requirements are
// free of errors.
bool fits(const Labels& labels, const std::vector<std::string>& requirements);

}  // namespace gnomon
