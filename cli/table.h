// Plain tables for people, and the few formats that their cells need.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace gnomon::cli {

class Table {
 public:
  // A heading that begins with '>' is of a column aligned to the right (numbers).
  explicit Table(std::vector<std::string> headings);
  void add(std::vector<std::string> cells);  // what stands in them is made printable()
  bool empty() const { return rows_.empty(); }
  std::string text() const;  // lines end in '\n'; the last column is not padded

 private:
  std::vector<std::string> headings_;
  std::vector<bool> right_;
  std::vector<std::vector<std::string>> rows_;
};

// "2026-11-21 09:22:49", in local time.
std::string format_time(double seconds_since_epoch);
// "+0.042%"; NaN is "NaN".
std::string format_percent(double percent);
std::string format_bytes(double bytes);  // "4.2 MiB"

// True when `stream` is a terminal that understands colours (NO_COLOR and TERM=dumb are respected).
bool wants_color(std::FILE* stream);

}  // namespace gnomon::cli
