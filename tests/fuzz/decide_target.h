// The decision core under any order of events: the target "decide".
#pragma once

#include <cstdint>
#include <span>

namespace gnomon::fuzz {

// The bytes choose a policy and then events, plausible ones and others, one after the other, until
// they are used up. After each event the invariants of tests/decide must hold. Ends the program
// otherwise.
void run_decide(std::span<const uint8_t> input);

}  // namespace gnomon::fuzz
