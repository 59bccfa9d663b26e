#include "protocol/labels.h"

#include <fmt/format.h>

#include <algorithm>

#include "protocol/site_glob.h"
#include "protocol/text.h"

namespace gnomon {
namespace {

bool is_key(std::string_view key) {
  return !key.empty() && key.size() <= kLabelKeyMax && std::ranges::all_of(key, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
  });
}

bool is_value(std::string_view value) {
  return value.size() <= kLabelValueMax && is_one_line(value);
}

}  // namespace

std::string label_error(std::string_view key, std::string_view value) {
  if (!is_key(key)) {
    return fmt::format("a key of 1 to {} characters of a-z, 0-9, '_', '.' and '-'", kLabelKeyMax);
  }
  if (key == kBackendLabel || key == kDeviceLabel) {
    return "another key: backend and device are what the fingerprint says";
  }
  if (!is_value(value)) {
    return fmt::format("a value of at most {} bytes without control characters", kLabelValueMax);
  }
  return {};
}

std::string requirement_error(std::string_view requirement) {
  const size_t equals = requirement.find('=');
  if (equals == std::string_view::npos || !is_key(requirement.substr(0, equals)) ||
      !is_value(requirement.substr(equals + 1)) ||
      requirement.find_first_of("{}") != std::string_view::npos) {
    return "KEY=GLOB, like backend=cuda or device=NVIDIA*";
  }
  return {};
}

bool fits(const Labels& labels, const std::vector<std::string>& requirements) {
  return std::ranges::all_of(requirements, [&](std::string_view requirement) {
    const size_t equals = requirement.find('=');
    const auto label = labels.find(requirement.substr(0, equals));
    return simple_glob_matches(requirement.substr(equals + 1),
                               label == labels.end() ? std::string_view() : label->second);
  });
}

}  // namespace gnomon
