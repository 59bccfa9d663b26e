// What a comparison found, as JSON and in words.
#pragma once

#include <boost/json.hpp>
#include <string>

#include "lab/accumulation/comparison.h"

namespace gnomon {

// "defaults_hold" and for each mode: the best candidate and those tied with it, whether it explains
// every bit, every candidate's score, and for each product the best candidate, the default and the
// exact ones.
boost::json::object comparison_to_json(const Comparison& comparison);

// For each mode the `lines` best candidates, the default and the exact ones, then a sentence.
std::string comparison_in_words(const Comparison& comparison, int lines);

}  // namespace gnomon
