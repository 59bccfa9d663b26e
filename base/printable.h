// Text of others (runs' names, what a trainer says, answers of servers) as it may be shown to
// people. A terminal obeys control characters, and a line break begins a line that looks like ours.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gnomon {

// UTF-8 stays as it is, but for what is not seen or moves other text: "\n", "\t", "\u001b",
// "\u202e" and their like are written as here. Bytes that are no UTF-8 become "\xff".
std::string printable(std::string_view text);

// The same of a JSON text, which stays one with the same meaning: what is no ASCII stands in
// strings alone, and JSON itself escapes the rest. Bytes that are no UTF-8 become U+FFFD.
std::string printable_json(std::string_view json);

// How many columns of a terminal UTF-8 text takes: two for what East Asian scripts write wide, and
// for emoji (Unicode Standard Annex 11), one for the rest. Combining marks, which take none, count
// as one.
size_t columns_of(std::string_view text);

// Three significant digits without an exponent: "4.19", "22,900", "over 10^15", "not finite".
std::string plain_number(double value);

}  // namespace gnomon
