// What somebody may have meant by a word that is not known.
#pragma once

#include <string>
#include <vector>

namespace gnomon {

// "; did you mean NAME?" where a name is a slip or two away, else nothing.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& names);

}  // namespace gnomon
