#include "protocol/value_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/json/value.hpp>
#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "protocol/json.h"
#include "protocol/json_members.h"
#include "protocol/json_text.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr double kStepsMax = 1e9;    // more than any run has
constexpr double kTokensMax = 1e12;  // of one step
constexpr double kCountMax = 1e15;
constexpr double kSecondsMax = 1e9;  // sums of such stay finite
constexpr double kTimeMax = 1e11;    // seconds since the epoch
constexpr double kFp32Max = 1e39;    // what is larger, FP32 calls Infinity

constexpr NumberRule kStep = {0, kStepsMax};
constexpr NumberRule kCount = {0, kCountMax};
constexpr NumberRule kSeconds = {0, kSecondsMax};
// What was computed, and may have overflowed.
constexpr NumberRule kComputed = {-kFp32Max, kFp32Max, true, true, true};
constexpr NumberRule kMagnitude = {0, kFp32Max, true, true, false};
constexpr NumberRule kShare = {0, 1, true, false, false};
constexpr NumberRule kCosine = {-1.001, 1.001, true, false, false};

const std::unordered_map<std::string_view, NumberRule>& rules() {
  static const std::unordered_map<std::string_view, NumberRule> all = {
      // Places in a run.
      {"attempt", kStep},
      {"step", kStep},
      {"base_step", kStep},
      {"start_step", kStep},
      {"end_step", kStep},
      {"steps_done", kStep},
      {"total_steps", kStep},
      {"checkpoint_every", kStep},
      {"last_directive", kStep},
      {"newest_plan_version", kStep},
      {"plan_version", {-kStepsMax, kStepsMax}},
      // Sizes.
      {"layers", {0, 1e6}},
      {"world_size", {1, 1e7}},
      {"threads", {0, 1e6}},
      {"parameters", kCount},
      {"tokens_per_step", {0, kTokensMax}},
      {"tokens", {0, kTokensMax}},
      {"heldout_tokens", kCount},
      {"bytes", kCount},
      {"memory_used_bytes", kCount},
      {"memory_total_bytes", kCount},
      {"ecc_corrected", kCount},
      {"ecc_uncorrected", kCount},
      // Times.
      {"time", {0, kTimeMax}},
      {"step_seconds", kSeconds},
      {"train_seconds", {0, 1e12}},
      {"replay_seconds", kSeconds},
      {"eval_seconds", kSeconds},
      // Of a step.
      {"loss", kComputed},
      {"grad_norm", kMagnitude},
      {"learning_rate", {0, 1e6}},
      {"final_loss", kComputed},
      // Of a replay.
      {"start_loss_bf16", kComputed},
      {"start_loss_plan", kComputed},
      {"start_loss_fakequant", kComputed},
      {"run_end_loss_bf16", kComputed},
      {"replay_end_loss_bf16", kComputed},
      {"gap_error", kMagnitude},
      {"phi", kComputed},
      {"psi", kComputed},
      // Of tensors; docs/statistics.md.
      {"nans", kCount},
      {"infinities", kCount},
      {"zeros", kCount},
      {"tiles", kCount},
      {"amax", kMagnitude},
      {"amin", kMagnitude},
      {"std", kMagnitude},
      {"l1", {0, 1e300, true, true, false}},
      {"l2", {0, 1e300, true, true, false}},
      {"dynamic_range", kMagnitude},
      {"kurtosis", kMagnitude},
      {"token_kurtosis_mean", kMagnitude},
      {"token_kurtosis_max", kMagnitude},
      {"amax_over_window", kMagnitude},
      {"gate_cosine_mean", kCosine},
      {"gate_cosine_max", kCosine},
      {"cosine", kCosine},
      {"underflow", kShare},
      {"saturation", kShare},
      {"overflow", kShare},
      {"subnormal", kShare},
      {"top_code", kShare},
      {"top_code_tile_max", kShare},
      {"underflow_percent", {-100, 100, true, false, false}},
      {"mse", {0, 1e300, true, true, false}},
      {"relative_error", kMagnitude},
      {"scale_min", kMagnitude},
      {"scale_max", kMagnitude},
      {"tile_range_mean", kMagnitude},
      {"tile_range_max", kMagnitude},
  };
  return all;
}

// Those that, where they are sent, have to say something. `batch_hash` may be empty: not said.
constexpr std::array<std::string_view, 2> kGivenHashes = {"weights_hash", "manifest_hash"};
constexpr std::array<std::string_view, 3> kHashes = {"weights_hash", "manifest_hash", "batch_hash"};
constexpr const char* kHashForm =
    "1 to 128 visible ASCII characters without a space, such as hexadecimal digits";

bool is_one_of(std::string_view member, const auto& names) {
  return std::ranges::find(names, member) != names.end();
}

std::string bound(double value) {
  constexpr double kExact = 1e15;
  return std::abs(value) <= kExact && value == std::floor(value)
             ? fmt::format("{}", static_cast<int64_t>(value))
             : fmt::format("{:g}", value);
}

std::string accepted_by(const NumberRule& rule) {
  std::string text = fmt::format("a number from {} to {}", bound(rule.least), bound(rule.most));
  if (rule.nan) text += ", \"NaN\"";
  if (rule.infinity) text += ", \"Infinity\"";
  if (rule.minus_infinity) text += ", \"-Infinity\"";
  return text;
}

bool accepts(const NumberRule& rule, double value) {
  if (std::isnan(value)) return rule.nan;
  if (std::isinf(value)) return value > 0 ? rule.infinity : rule.minus_infinity;
  return value >= rule.least && value <= rule.most;
}

// Where in a message a value is: "steps[3].loss".
using Path = std::vector<std::pair<std::string_view, std::optional<size_t>>>;

std::string text_of(const Path& path) {
  std::string text;
  for (const auto& [name, index] : path) {
    text += fmt::format("{}{}", text.empty() ? "" : ".", name);
    if (index) text += fmt::format("[{}]", *index);
  }
  return text;
}

class ValueChecker {
 public:
  template <typename T>
  void required(const char* name, const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      if (!std::is_same_v<T, bool>) check_number(name, std::nullopt, value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      check_hash(name, value);
    } else if constexpr (IsVector<T>::value) {
      check_list(name, value);
    } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, Labels>) {
      path_.emplace_back(name, std::nullopt);
      visit_members(*this, const_cast<T&>(value));  // only read
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
  bool lacks_a_hash() const { return lacks_a_hash_; }

 private:
  template <typename T>
  void check_list(const char* name, const std::vector<T>& list) {
    if constexpr (std::is_arithmetic_v<T>) {
      for (size_t i = 0; i < list.size(); ++i) check_number(name, i, list[i]);
    } else if constexpr (std::is_class_v<T> && !std::is_same_v<T, std::string>) {
      path_.emplace_back(name, std::nullopt);
      for (size_t i = 0; i < list.size(); ++i) {
        path_.back().second = i;
        visit_members(*this, const_cast<T&>(list[i]));  // only read
      }
      path_.pop_back();
    }
  }
  template <typename T>
  void check_number(const char* name, std::optional<size_t> index, T value) {
    const NumberRule* rule = number_rule(name);
    if (rule == nullptr || accepts(*rule, static_cast<double>(value))) return;
    path_.emplace_back(name, index);
    throw JsonError(text_of(path_), fmt::format("{}", value), accepted_by(*rule));
  }
  void check_hash(const char* name, const std::string& value) {
    if (value.empty()) {
      lacks_a_hash_ = lacks_a_hash_ || is_one_of(name, kGivenHashes);
      return;
    }
    if (!is_one_of(name, kHashes) || is_hash(value)) return;
    path_.emplace_back(name, std::nullopt);
    throw JsonError(text_of(path_), fmt::format("\"{}\"", value), kHashForm);
  }

  Path path_;
  bool lacks_a_hash_ = false;
};

void find_empty(const json::value& value, Path& path) {
  if (const json::object* object = value.if_object()) {
    for (const auto& member : *object) {
      const std::string_view name(member.key().data(), member.key().size());
      path.emplace_back(name, std::nullopt);
      const json::string* text = member.value().if_string();
      if (text != nullptr && text->empty() && is_one_of(name, kGivenHashes)) {
        throw JsonError(text_of(path), "\"\"", fmt::format("{}, or no such member", kHashForm));
      }
      find_empty(member.value(), path);
      path.pop_back();
    }
  } else if (const json::array* array = value.if_array()) {
    for (size_t i = 0; i < array->size(); ++i) {
      if (!path.empty()) path.back().second = i;
      find_empty((*array)[i], path);
    }
  }
}

template <typename Message>
ValueChecker checked(const Message& message) {
  ValueChecker checker;
  visit_members(checker, const_cast<Message&>(message));  // only read
  return checker;
}

}  // namespace

const NumberRule* number_rule(std::string_view member) {
  const auto found = rules().find(member);
  return found == rules().end() ? nullptr : &found->second;
}

bool is_given_hash(std::string_view member) { return is_one_of(member, kGivenHashes); }

bool is_hash(std::string_view text) {
  constexpr size_t kSizeMax = 128;
  return !text.empty() && text.size() <= kSizeMax &&
         std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c < 0x7f; });
}

template <typename Message>
void check_values(const Message& message) {
  checked(message);
}

template <typename Message>
bool lacks_a_hash(const Message& message) {
  return checked(message).lacks_a_hash();
}

void check_given_hashes(std::string_view body) {
  Path path;
  const json::value value = parse_json_exactly(body);
  find_empty(value, path);
}

#define GNOMON_MESSAGE(Message)                        \
  template void check_values<Message>(const Message&); \
  template bool lacks_a_hash<Message>(const Message&);
GNOMON_EACH_MESSAGE(GNOMON_MESSAGE)
#undef GNOMON_MESSAGE

}  // namespace gnomon
