// Words of records in tests, where their texts are not known before a test runs.
#pragma once

#include <concepts>
#include <cstddef>
#include <ostream>
#include <string_view>

#include "protocol/records/word.h"

namespace gnomon {

// For EXPECT_EQ(row.kind, "alarm"): within a macro of GoogleTest a literal is no constant.
template <const auto& list, size_t N>
bool operator==(const Word<list>& word, const char (&text)[N]) {
  return word.text() == std::string_view(text);
}
template <const auto& list, typename T>
requires std::same_as<T, const char*>
bool operator==(const Word<list>& word, const T& text) {
  return word.text() == std::string_view(text);
}
template <const auto& list>
std::ostream& operator<<(std::ostream& out, const Word<list>& word) {
  return out << word.text();
}

namespace test {

// Becomes a word of whatever list, also one that is not on it.
struct AnyWord {
  std::string_view text;
  template <const auto& list>
  operator Word<list>() const {  // NOLINT(google-explicit-constructor)
    return Word<list>::on_record(text);
  }
};
inline AnyWord any_word(std::string_view text) { return {text}; }

}  // namespace test
}  // namespace gnomon
