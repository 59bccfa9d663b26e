// A text that is one of a list of words. A literal that is not on the list does not compile.
//
//   inline constexpr std::array<std::string_view, 2> kColours = {"red", "blue"};
//   using Colour = Word<kColours>;
//   if (row.colour == "blue") ...
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace gnomon {

template <const auto& list>
class Word {
 public:
  static constexpr std::span<const std::string_view> kList{list};

  constexpr Word() = default;  // empty: not said
  template <size_t N>
  consteval Word(const char (&word)[N]) : text_(word) {  // NOLINT(google-explicit-constructor)
    if (!lists(text_)) throw "not a word of the list";
  }
  // What a record says. Rows that were edited by hand, and newer peers, may have other words: they
  // are kept, to be shown or refused.
  static Word on_record(std::string_view text);

  static constexpr bool lists(std::string_view text) {
    return std::ranges::find(list, text) != list.end();
  }
  constexpr bool is_known() const { return lists(text_); }
  constexpr bool starts_with(std::string_view part) const { return text_.starts_with(part); }
  constexpr bool empty() const { return text_.empty(); }
  constexpr std::string_view text() const { return text_; }
  operator std::string_view() const { return text_; }  // NOLINT(google-explicit-constructor)
  operator std::string() const {
    return std::string(text_);
  }  // NOLINT(google-explicit-constructor)

  friend constexpr bool operator==(const Word& a, const Word& b) { return a.text_ == b.text_; }
  template <typename T>
  requires std::same_as<T, std::string> || std::same_as<T, std::string_view>
  friend bool operator==(const Word& a, const T& b) { return a.text_ == b; }
  friend auto operator<=>(const Word& a, const Word& b) { return a.text_ <=> b.text_; }

 private:
  std::string_view text_;  // of the list, or kept by kept_word()
};

// A copy of `text` that stays as long as the process.
std::string_view kept_word(std::string_view text);

template <const auto& list>
Word<list> Word<list>::on_record(std::string_view text) {
  const auto known = std::ranges::find(list, text);
  Word word;
  if (known != list.end()) {
    word.text_ = *known;
  } else if (!text.empty()) {
    word.text_ = kept_word(text);
  }
  return word;
}

template <typename T>
inline constexpr bool kIsWord = false;
template <const auto& list>
inline constexpr bool kIsWord<Word<list>> = true;

}  // namespace gnomon

template <const auto& list>
struct fmt::formatter<gnomon::Word<list>> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(const gnomon::Word<list>& word, Context& context) const {
    return fmt::formatter<std::string_view>::format(word.text(), context);
  }
};
