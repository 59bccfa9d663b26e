// Tensor statistics as a table for people: one line for each rounding of a tensor, worst first.
#pragma once

#include <string>
#include <vector>

#include "protocol/records.h"

namespace gnomon::cli {

// Throws ConfigError naming `key` unless it is one of kStatisticsNames, "site" or "tensor".
void check_sort_key(const std::string& key);

// Lines of roundings, each with what is known of its tensor, and of tensors that nothing rounds.
// "site" keeps the order that the rows have, but for layers, which go by their number; "tensor"
// sorts by name; a number sorts by its worst first: the largest, but the
// smallest of sqnr_db and cosine. Where a line does not have the number it comes last.
std::string statistics_table(const std::vector<StatisticsRow>& rows, const std::string& sort);

// Six digits, and never rounded to 0; "-" for nothing.
std::string statistics_number(const std::optional<double>& value);

}  // namespace gnomon::cli
