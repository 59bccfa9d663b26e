// Globs over module names: '*' (also across dots), '?' (one character), '{a,b}' (alternatives;
// "last" inside is the number of the last layer). Expanding the braces once makes matching linear
// in the name.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace gnomon {

inline constexpr size_t kGlobAlternativesMax = 4096;

// What is wrong with `glob` (unbalanced or nested braces, empty, too many alternatives), in words;
// empty when it is fine.
std::string glob_error(std::string_view glob);

// The glob with every brace replaced by each of its alternatives. `glob` must be free of errors.
std::vector<std::string> expand_glob(std::string_view glob, int layers);

// A brace-free glob against a whole name.
bool simple_glob_matches(std::string_view glob, std::string_view name);

}  // namespace gnomon
