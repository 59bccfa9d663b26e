// The numbers of `gnomon plan` as people type them.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string_view>

#include "base/errors.h"
#include "lab/planning/run_planning.h"

namespace gnomon::cli {
namespace {

constexpr double kProbabilityLow = 0.05, kProbabilityHigh = 0.95;

// Takes a number and a k, M or G behind it off the front; NaN when there is none.
double parse_number(std::string_view& text) {
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value)) return NAN;
  text.remove_prefix(static_cast<size_t>(next - text.data()));
  for (const auto& [letter, factor] : {std::pair{'k', 1e3}, {'M', 1e6}, {'G', 1e9}}) {
    if (!text.starts_with(letter)) continue;
    text.remove_prefix(1);
    return value * factor;
  }
  return value;
}

double one_hazard(const std::string& option, const std::string& whole, std::string_view text) {
  const bool inverse = text.starts_with("1/");
  if (inverse) text.remove_prefix(2);
  double value = parse_number(text);
  if (inverse) value = 1 / value;
  if (!text.empty() || !(value == 0 || (value >= 1e-12 && value <= 1))) {
    throw ConfigError("", 0, option, whole,
                      "faults per FP8 step from 0 to 1, as 1/100k or 1e-5, or a range of two such "
                      "(1/1M..1/10k)");
  }
  return value;
}

bool is_word(std::string_view text) {
  for (char c : text) {
    if (!(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z')) return false;
  }
  return !text.empty() && text.size() <= 8;
}

}  // namespace

double parse_count(const std::string& option, const std::string& text) {
  std::string_view rest = text;
  const double value = parse_number(rest);
  if (!rest.empty() || !(value > 0 && value <= 1e15)) {
    throw ConfigError("", 0, option, text, "a number above 0, as 20000, 500k or 1.5M");
  }
  return value;
}

void parse_hazard(const std::string& option, const std::string& text, RunQuestion& question) {
  const size_t dots = text.find("..");
  question.belief.reset();
  if (dots == std::string::npos) {
    question.hazard = one_hazard(option, text, text);
    question.hazard_low = question.hazard_high = question.hazard;
    if (question.hazard == 0) return;
    question.belief = decide::hazard_prior(question.hazard);
    question.hazard_low = decide::hazard_quantile(*question.belief, kProbabilityLow);
    question.hazard_high =
        std::min(1.0, decide::hazard_quantile(*question.belief, kProbabilityHigh));
    return;
  }
  const std::string_view whole = text;
  const double one = one_hazard(option, text, whole.substr(0, dots));
  const double other = one_hazard(option, text, whole.substr(dots + 2));
  question.hazard_low = std::min(one, other);
  question.hazard_high = std::max(one, other);
  if (question.hazard_low == 0) {
    throw ConfigError("", 0, option, text, "a range whose ends are above 0");
  }
  question.hazard = std::sqrt(question.hazard_low * question.hazard_high);
}

Budget parse_budget(const std::string& option, const std::string& text) {
  std::string_view rest = text;
  Budget budget;
  budget.amount = parse_number(rest);
  if (!(budget.amount > 0 && budget.amount <= 1e15) || (!rest.empty() && !is_word(rest))) {
    throw ConfigError("", 0, option, text,
                      "GPU-hours (20000, 20kh) or money with its unit (1.5Musd, 50keur)");
  }
  if (rest != "h" && rest != "gpuh") budget.currency = rest;
  return budget;
}

}  // namespace gnomon::cli
