#include "cli/statistics_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <string_view>
#include <tuple>

#include "base/errors.h"
#include "cli/table.h"

namespace gnomon::cli {
namespace {

struct Line {
  const StatisticsRow* rounding = nullptr;  // or the tensor's own row where nothing rounds it
  const StatisticsRow* tensor = nullptr;

  std::optional<double> number(size_t which) const {
    if (rounding->numbers[which]) return rounding->numbers[which];
    return tensor == nullptr ? std::nullopt : tensor->numbers[which];
  }
  std::optional<double> number(StatisticsNumber which) const {
    return number(static_cast<size_t>(which));
  }
  auto name() const {
    return std::tie(rounding->site, rounding->tensor, rounding->gemm, rounding->recipe);
  }
};

std::vector<Line> lines_of(const std::vector<StatisticsRow>& rows) {
  std::map<std::pair<std::string, std::string>, const StatisticsRow*> tensors;
  std::map<std::pair<std::string, std::string>, int> roundings;
  for (const StatisticsRow& row : rows) {
    if (row.recipe.empty()) tensors[{row.site, row.tensor}] = &row;
    if (!row.recipe.empty()) ++roundings[{row.site, row.tensor}];
  }
  std::vector<Line> lines;
  for (const StatisticsRow& row : rows) {
    const std::pair<std::string, std::string> tensor{row.site, row.tensor};
    if (row.recipe.empty() && roundings[tensor] > 0) continue;
    const auto found = tensors.find(tensor);
    lines.push_back({&row, found == tensors.end() ? nullptr : found->second});
  }
  return lines;
}

// The number of a site's layer: 10 for "model.layers.10.mlp.up_proj"; nothing where it has none.
std::optional<int64_t> layer_of(std::string_view site) {
  while (!site.empty()) {
    const std::string_view part = site.substr(0, site.find('.'));
    int64_t number = 0;
    const auto [stopped, error] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (error == std::errc() && stopped == part.data() + part.size()) return number;
    site.remove_prefix(std::min(part.size() + 1, site.size()));
  }
  return std::nullopt;
}

// What belongs to no layer stays in front of the layers or behind them.
void sort_by_layer(std::vector<Line>& lines) {
  const auto first = std::ranges::find_if(
      lines, [](const Line& line) { return layer_of(line.rounding->site).has_value(); });
  std::ranges::stable_sort(first, lines.end(), {}, [](const Line& line) {
    return layer_of(line.rounding->site).value_or(std::numeric_limits<int64_t>::max());
  });
}

void sort_lines(std::vector<Line>& lines, const std::string& key) {
  if (key == "site") {
    sort_by_layer(lines);
    return;
  }
  if (key == "tensor") {
    std::ranges::stable_sort(lines, {}, [](const Line& line) { return line.rounding->tensor; });
    return;
  }
  const size_t which =
      static_cast<size_t>(std::ranges::find(kStatisticsNames, key) - kStatisticsNames.begin());
  const bool small_is_bad = key == "sqnr_db" || key == "cosine";
  std::ranges::stable_sort(lines, [&](const Line& a, const Line& b) {
    const std::optional<double> left = a.number(which);
    const std::optional<double> right = b.number(which);
    if (!left || !right) return left.has_value() && !right.has_value();
    return small_is_bad ? *left < *right : *left > *right;
  });
}

}  // namespace

void check_sort_key(const std::string& key) {
  if (key == "site" || key == "tensor") return;
  if (std::ranges::find(kStatisticsNames, key) != kStatisticsNames.end()) return;
  throw ConfigError("", 0, "--sort", key,
                    fmt::format("site, tensor, {}", fmt::join(kStatisticsNames, ", ")));
}

std::string statistics_number(const std::optional<double>& value) {
  return value ? fmt::format("{:.6g}", *value) : "-";
}

std::string statistics_table(const std::vector<StatisticsRow>& rows, const std::string& sort) {
  check_sort_key(sort);
  std::vector<Line> lines = lines_of(rows);
  sort_lines(lines, sort);
  std::vector<StatisticsNumber> shown = {
      StatisticsNumber::kAmax,      StatisticsNumber::kStd,        StatisticsNumber::kKurtosis,
      StatisticsNumber::kUnderflow, StatisticsNumber::kSaturation, StatisticsNumber::kSubnormal,
      StatisticsNumber::kTopCode,   StatisticsNumber::kSqnrDb,     StatisticsNumber::kScaleError};
  const auto sorted_by = std::ranges::find(kStatisticsNames, sort);
  if (sorted_by != kStatisticsNames.end()) {
    const auto number = static_cast<StatisticsNumber>(sorted_by - kStatisticsNames.begin());
    if (std::ranges::find(shown, number) == shown.end()) shown.insert(shown.begin(), number);
  }
  std::vector<std::string> headings = {"site", "tensor", "gemm", "recipe"};
  for (StatisticsNumber number : shown) {
    headings.push_back(fmt::format(">{}", kStatisticsNames[static_cast<size_t>(number)]));
  }
  Table table(headings);
  for (const Line& line : lines) {
    const StatisticsRow& row = *line.rounding;
    std::vector<std::string> cells = {
        row.site, row.tensor, row.gemm.empty() ? "-" : std::string(row.gemm),
        row.recipe.empty() ? "-" : row.recipe + (row.in_use ? "" : " ?")};
    for (StatisticsNumber number : shown) cells.push_back(statistics_number(line.number(number)));
    table.add(cells);
  }
  return table.text();
}

}  // namespace gnomon::cli
