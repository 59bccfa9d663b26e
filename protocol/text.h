// Which texts a record's member may have.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

// True for a text that is free of C0 and C1 controls, DEL, line separators and bidirectional
// controls (U+202A to U+202E, U+2066 to U+2069), so that no log line or table says what it does
// not. The text is UTF-8.
bool is_one_line(std::string_view text);

// "one of "shadow", "probe"".
std::string one_of_words(std::span<const std::string_view> words);

// What would be accepted in place of `text`, in words; empty when its member may have it.
std::string what_is_accepted(std::string_view text, const Member& member);

// What fits: a long text (an error that quotes a file, say) loses its end.
std::string shortened(std::string text, const Text& rule);

}  // namespace gnomon
