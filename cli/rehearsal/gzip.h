// A whole file in memory as gzip has it.
#pragma once

#include <string>

namespace gnomon::rehearsal {

// The same text gives the same bytes: no time and no name is written.
std::string gzip(const std::string& text);
// Throws FormatError naming `file` when that is no gzip file or not a whole one.
std::string gunzip(const std::string& bytes, const std::string& file);

}  // namespace gnomon::rehearsal
