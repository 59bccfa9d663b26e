#include "cli/table.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <ctime>
#include <string_view>

#include "base/errors.h"
#include "base/printable.h"

namespace gnomon::cli {

Table::Table(std::vector<std::string> headings) : headings_(std::move(headings)) {
  for (std::string& heading : headings_) {
    right_.push_back(heading.starts_with('>'));
    if (right_.back()) heading.erase(0, 1);
  }
}

void Table::add(std::vector<std::string> cells) {
  GNOMON_ASSERT(cells.size() == headings_.size());
  for (std::string& cell : cells) cell = printable(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::text() const {
  std::vector<size_t> widths;
  for (const std::string& heading : headings_) widths.push_back(columns_of(heading));
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], columns_of(row[i]));
  }
  std::string out;
  auto line = [&](const std::vector<std::string>& cells) {
    for (size_t i = 0; i < cells.size(); ++i) {
      const std::string space(widths[i] - columns_of(cells[i]), ' ');
      if (i > 0) out += "  ";
      if (right_[i]) out += space;
      out += cells[i];
      if (!right_[i] && i + 1 < cells.size()) out += space;
    }
    out += '\n';
  };
  line(headings_);
  for (const auto& row : rows_) line(row);
  return out;
}

std::string format_time(double seconds_since_epoch) {
  std::time_t seconds = static_cast<std::time_t>(std::floor(seconds_since_epoch));
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(seconds));
}

std::string format_percent(double percent) {
  return std::isnan(percent) ? "NaN" : fmt::format("{:+.3f}%", percent);
}

std::string format_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit == 0 ? 0 : 1, units[unit]);
}

bool wants_color(std::FILE* stream) {
  const char* no_color = std::getenv("NO_COLOR");
  const char* terminal = std::getenv("TERM");
  if (no_color != nullptr && *no_color != '\0') return false;
  if (terminal == nullptr || std::string_view(terminal) == "dumb") return false;
  return isatty(fileno(stream)) == 1;
}

}  // namespace gnomon::cli
