// Which numbers and hashes the members of a message may have that somebody sends to the controller:
// what no trainer and no verifier can mean is refused before anything rests on it. A loss that is
// not finite is a fact and is taken. What depends on the run (a step's place in it, a plan that it
// has had) its supervisor looks at.
#pragma once

#include <string_view>

#include "protocol/messages.h"

namespace gnomon {

struct NumberRule {
  double least;
  double most;
  // What is taken besides: "NaN", "Infinity" and "-Infinity".
  bool nan = false;
  bool infinity = false;
  bool minus_infinity = false;
};

// Of a member by its name, which means the same in every message; null where every number is one
// that somebody may mean.
const NumberRule* number_rule(std::string_view member);

// Whether the member is a hash that says something where it is sent: who has none leaves it out.
bool is_given_hash(std::string_view member);

// Whether a text has the form of a hash: 1 to 128 visible ASCII characters without a space. Which
// digits a trainer writes its hashes in is its own affair: they are only compared.
bool is_hash(std::string_view text);

// Throws JsonError, which names the path, the value and what is accepted. Instantiated for every
// message struct.
template <typename Message>
void check_values(const Message& message);
// Throws JsonError when `body`, which is JSON, has a hash that is there but empty, where absent is
// how nothing is said.
void check_given_hashes(std::string_view body);
// Whether the message leaves such a hash out, or has it empty.
template <typename Message>
bool lacks_a_hash(const Message& message);

}  // namespace gnomon
