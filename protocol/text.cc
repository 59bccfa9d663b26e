#include "protocol/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace gnomon {
namespace {

// Most texts are short and plain, and only words and hashes refuse such.
bool is_plain(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) { return c >= ' ' && c < 0x7f; });
}

// True where a code point begins here, not of ASCII, that a line may not have.
bool turns_or_breaks(std::string_view at) {
  const auto byte = [&](size_t i) {
    return i < at.size() ? static_cast<unsigned char>(at[i]) : 0U;
  };
  if (byte(0) == 0xc2) return byte(1) >= 0x80 && byte(1) < 0xa0;  // U+0080 to U+009F
  if (byte(0) != 0xe2) return false;
  if (byte(1) == 0x80) return byte(2) >= 0xa8 && byte(2) <= 0xae;  // U+2028 to U+202E
  return byte(1) == 0x81 && byte(2) >= 0xa6 && byte(2) <= 0xa9;    // U+2066 to U+2069
}

}  // namespace

bool is_one_line(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < ' ' || c == 0x7f || turns_or_breaks(text.substr(i, 3))) return false;
  }
  return true;
}

std::string_view kept_word(std::string_view text) {
  static std::mutex mutex;
  static std::set<std::string, std::less<>> words;
  const std::lock_guard lock(mutex);
  return *words.emplace(text).first;
}

std::string one_of_words(std::span<const std::string_view> words) {
  return fmt::format("one of \"{}\"", fmt::join(words, "\", \""));
}

std::string what_is_accepted(std::string_view text, const Member& member) {
  const Text& rule = member.text;
  if (rule.form == Text::Form::kHash) {
    const auto visible = [](unsigned char c) { return c > ' ' && c < 0x7f; };
    if (text.size() >= rule.least && text.size() <= rule.most &&
        std::ranges::all_of(text, visible)) {
      return {};
    }
    return fmt::format(
        "{} to {} visible ASCII characters without a space, such as hexadecimal digits{}",
        rule.least, rule.most, rule.least > 0 && !member.required ? ", or no such member" : "");
  }
  if (text.size() < rule.least || text.size() > rule.most) {
    return rule.least == 0 ? fmt::format("at most {} bytes", rule.most)
                           : fmt::format("{} to {} bytes", rule.least, rule.most);
  }
  if (rule.form == Text::Form::kLine && !is_plain(text) && !is_one_line(text)) {
    return "one line without control characters and without those that turn text around";
  }
  return {};
}

std::string shortened(std::string text, const Text& rule) {
  constexpr std::string_view kCut = " ...";
  if (text.size() <= rule.most) return text;
  size_t end = rule.most - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole letters
  text.resize(end);
  return text.append(kCut);
}

}  // namespace gnomon
