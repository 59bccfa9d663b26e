// How long the texts of a message may be that somebody sends to the controller, and which
// characters may be in them. What it wrote itself (its ledger, its answers) is read without these
// rules: a rule that grows stricter must not lock anybody out of what is on record.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "protocol/messages.h"

namespace gnomon {

struct TextRule {
  size_t bytes_max = 200;
  // Names, kinds, hashes, paths: no control characters, and none that change the direction of the
  // text around them, so that no log line or table says what it does not.
  bool one_line = true;
};

// Of a member by its name, which means the same in every message.
TextRule text_rule(std::string_view member);

// Whether a text is free of C0 and C1 controls, DEL, line separators and bidirectional controls
// (U+202A to U+202E, U+2066 to U+2069). The text is UTF-8.
bool is_one_line(std::string_view text);

// What fits into that member: a long text (an error that quotes a file, say) loses its end.
std::string shortened(std::string text, std::string_view member);

// Throws JsonError, which names the path, for a text that its rule refuses. These are instantiated
// for every message struct.
template <typename Message>
void check_texts(const Message& message);
// from_json() of what came from outside, check_texts() and check_values() (value_rules.h).
template <typename Message>
Message from_request(std::string_view body);

}  // namespace gnomon
