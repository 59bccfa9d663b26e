#include "base/suggestion.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

namespace gnomon {

// Letters to insert, remove or replace until one word is the other.
static size_t edits_between(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= one.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= other.size(); ++j) {
      const size_t replaced = diagonal + (one[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

std::string did_you_mean(const std::string& word, const std::vector<std::string>& names) {
  const size_t most = word.size() < 5 ? 1 : 2;
  const auto nearest = std::ranges::min_element(
      names, {}, [&](const std::string& name) { return edits_between(word, name); });
  if (nearest == names.end() || edits_between(word, *nearest) > most) return "";
  return fmt::format("; did you mean {}?", *nearest);
}

}  // namespace gnomon
