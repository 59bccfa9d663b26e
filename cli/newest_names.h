// What there is, where a name was given that nothing has.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

namespace gnomon::cli {

// The ten newest names, newest first, and how many more there are. `names` has the oldest first.
inline std::string newest_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 10;
  std::string text;
  for (size_t i = 0; i < names.size() && i < kShown; ++i) {
    text += (i == 0 ? "" : ", ") + names[names.size() - 1 - i];
  }
  return names.size() <= kShown ? text : fmt::format("{} and {} more", text, names.size() - kShown);
}

}  // namespace gnomon::cli
