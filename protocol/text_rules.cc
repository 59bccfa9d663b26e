#include "protocol/text_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "protocol/json.h"
#include "protocol/json_members.h"
#include "protocol/value_rules.h"

namespace gnomon {
namespace {

constexpr size_t kPathMax = 4096;
constexpr size_t kSentenceMax = 16'384;
constexpr size_t kPlanMax = size_t{4} << 20;

struct NamedRule {
  std::string_view member;
  TextRule rule;
};
constexpr std::array kRules = {
    NamedRule{"libraries", {1000, true}},
    NamedRule{"uri", {kPathMax, true}},
    NamedRule{"checkpoint_uri", {kPathMax, true}},
    NamedRule{"end_checkpoint_uri", {kPathMax, true}},
    NamedRule{"checkpoint_root", {kPathMax, true}},
    NamedRule{"protected_checkpoints", {kPathMax, true}},
    NamedRule{"description", {kSentenceMax, false}},
    NamedRule{"error", {kSentenceMax, false}},
    NamedRule{"reason", {kSentenceMax, false}},
    NamedRule{"text", {kSentenceMax, false}},
    NamedRule{"base_plan", {kPlanMax, false}},
    NamedRule{"plan", {kPlanMax, false}},
};

// Most texts are short and plain, and no rule refuses such.
bool is_plain(const std::string& text) {
  constexpr size_t kShort = 200;
  return text.size() <= kShort &&
         std::ranges::all_of(text, [](unsigned char c) { return c >= ' ' && c < 0x7f; });
}

class TextChecker {
 public:
  template <typename T>
  void required(const char* name, const T& value) {
    if constexpr (!std::is_arithmetic_v<T>) {
      if constexpr (std::is_same_v<T, std::string>) {
        if (is_plain(value)) return;
      }
      path_.emplace_back(name, std::nullopt);
      check(value);
      path_.pop_back();
    }
  }
  template <typename T>
  void optional(const char* name, const T& value) {
    required(name, value);
  }
  template <typename T>
  void optional(const char* name, const std::optional<T>& value) {
    if (value) required(name, *value);
  }

 private:
  template <typename T>
  void check(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (!is_plain(value)) check_text(value);
    } else if constexpr (IsVector<T>::value) {
      if constexpr (!std::is_arithmetic_v<typename T::value_type>) {
        for (size_t i = 0; i < value.size(); ++i) {
          path_.back().second = i;
          check(value[i]);
        }
      }
    } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, Labels>) {  // label_error()
      visit_members(*this, const_cast<T&>(value));                            // only read
    }
  }
  void check_text(const std::string& text) const {
    const TextRule rule = text_rule(path_.back().first);
    if (text.size() > rule.bytes_max) {
      throw JsonError(path(), fmt::format("{} bytes", text.size()),
                      fmt::format("at most {} bytes", rule.bytes_max));
    }
    if (rule.one_line && !is_one_line(text)) {
      throw JsonError(
          path(), "a control character",
          "one line without control characters and without those that turn text around");
    }
  }
  std::string path() const {
    std::string path;
    for (const auto& [name, index] : path_) {
      path += fmt::format("{}{}", path.empty() ? "" : ".", name);
      if (index) path += fmt::format("[{}]", *index);
    }
    return path;
  }

  std::vector<std::pair<const char*, std::optional<size_t>>> path_;
};

// Whether a code point that one line has not, other than those of ASCII, begins here.
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

TextRule text_rule(std::string_view member) {
  const auto found = std::ranges::find(kRules, member, &NamedRule::member);
  return found == kRules.end() ? TextRule{} : found->rule;
}

bool is_one_line(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < ' ' || c == 0x7f || turns_or_breaks(text.substr(i, 3))) return false;
  }
  return true;
}

std::string shortened(std::string text, std::string_view member) {
  constexpr std::string_view kCut = " ...";
  const size_t most = text_rule(member).bytes_max;
  if (text.size() <= most) return text;
  size_t end = most - kCut.size();
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;  // whole letters
  text.resize(end);
  return text.append(kCut);
}

template <typename Message>
void check_texts(const Message& message) {
  TextChecker checker;
  visit_members(checker, const_cast<Message&>(message));  // only read
}

template <typename Message>
Message from_request(std::string_view body) {
  Message message = from_json<Message>(body);
  check_texts(message);
  // Looks at every number too.
  if (lacks_a_hash(message)) check_given_hashes(body);
  return message;
}

#define GNOMON_MESSAGE(Message)                       \
  template void check_texts<Message>(const Message&); \
  template Message from_request<Message>(std::string_view);
GNOMON_EACH_MESSAGE(GNOMON_MESSAGE)
#undef GNOMON_MESSAGE

}  // namespace gnomon
