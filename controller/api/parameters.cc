#include "controller/api/parameters.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <stdexcept>

#include "controller/auth/http_error.h"

namespace gnomon {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::optional<int64_t> parse_whole(std::string_view text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_seconds(std::string_view text) {
  if (text.ends_with('s')) text.remove_suffix(1);
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  double value = 0;
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::pair<int64_t, int64_t>> parse_place(std::string_view text) {
  const size_t dot = std::min(text.find('.'), text.size());
  const auto first = parse_whole(text.substr(0, dot));
  const auto second = dot < text.size() ? parse_whole(text.substr(dot + 1)) : std::nullopt;
  if (!first || !second || *first < 0 || *second < 0) return std::nullopt;
  return std::pair{*first, *second};
}

int64_t characters(std::string_view text) {
  return std::ranges::count_if(
      text, [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// What would be accepted; empty when the value is.
std::string expectation(const QueryParameter& parameter, const std::string& text) {
  switch (parameter.kind) {
    case QueryParameter::Kind::kInteger: {
      const auto value = parse_whole(text);
      if (value && *value >= parameter.min && *value <= parameter.max) return {};
      return fmt::format("an integer from {} to {}", parameter.min, parameter.max);
    }
    case QueryParameter::Kind::kSeconds: {
      const auto value = parse_seconds(text);
      if (value && *value >= 0 && *value <= static_cast<double>(parameter.max)) return {};
      return fmt::format("seconds from 0 to {}, as 30 or 30s", parameter.max);
    }
    case QueryParameter::Kind::kText:
      if (characters(text) <= parameter.max) return {};
      return fmt::format("at most {} characters", parameter.max);
    case QueryParameter::Kind::kChoice:
      if (std::ranges::find(parameter.choices, text) != parameter.choices.end()) return {};
      return fmt::format("{}", fmt::join(parameter.choices, ", "));
    case QueryParameter::Kind::kPlace:
      if (parse_place(text)) return {};
      return "two numbers with a dot between them, as the Link header of the page before has it";
  }
  return {};
}

const QueryParameter* find_parameter(const std::vector<QueryParameter>& declared,
                                     const std::string& name) {
  const auto found = std::ranges::find(declared, name, &QueryParameter::name);
  return found == declared.end() ? nullptr : &*found;
}

// The declaration, and the value where there is one.
std::pair<const QueryParameter&, const std::string*> look_up(const Request& request,
                                                             const std::string& name) {
  const QueryParameter* parameter =
      request.parameters ? find_parameter(*request.parameters, name) : nullptr;
  if (parameter == nullptr) {
    throw std::logic_error(fmt::format("the route does not declare its parameter {}", name));
  }
  const auto given = request.query.find(name);
  return {*parameter, given == request.query.end() ? nullptr : &given->second};
}

}  // namespace

QueryParameter integer_parameter(std::string name, std::string help, int64_t min, int64_t max,
                                 std::optional<int64_t> absent) {
  return {std::move(name), std::move(help), QueryParameter::Kind::kInteger, min, max, absent, {}};
}

QueryParameter seconds_parameter(std::string name, std::string help, int64_t max) {
  return {std::move(name), std::move(help), QueryParameter::Kind::kSeconds, 0, max, {}, {}};
}

QueryParameter text_parameter(std::string name, std::string help, int64_t characters_max) {
  return {std::move(name), std::move(help), QueryParameter::Kind::kText, 0, characters_max, {}, {}};
}

QueryParameter choice_parameter(std::string name, std::string help,
                                std::vector<std::string> choices) {
  return {std::move(name),   std::move(help), QueryParameter::Kind::kChoice, 0, 0, {},
          std::move(choices)};
}

QueryParameter place_parameter(std::string name, std::string help) {
  return {std::move(name), std::move(help), QueryParameter::Kind::kPlace, 0, INT64_MAX, {}, {}};
}

std::string percent_decode(std::string_view text, bool plus_is_space) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
      int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
      if (low < 0) {
        throw HttpError(400, "Broken escape in the address", std::string(text),
                        "% and two hexadecimal digits");
      }
      decoded += static_cast<char>(high * 16 + low);
      i += 2;
    } else {
      decoded += text[i] == '+' && plus_is_space ? ' ' : text[i];
    }
  }
  return decoded;
}

std::string percent_encode(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '.' || c == '_' || c == '~';
    encoded += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return encoded;
}

std::map<std::string, std::string> parse_query(std::string_view query) {
  std::map<std::string, std::string> values;
  while (!query.empty()) {
    size_t end = std::min(query.find('&'), query.size());
    std::string_view pair = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (pair.empty()) continue;
    size_t equals = std::min(pair.find('='), pair.size());
    std::string_view value = equals < pair.size() ? pair.substr(equals + 1) : std::string_view();
    std::string name = percent_decode(pair.substr(0, equals), true);
    if (!values.emplace(name, percent_decode(value, true)).second) {
      throw HttpError(400, "Parameter given twice", fmt::format("{} is there twice", name),
                      "each parameter once");
    }
  }
  return values;
}

void check_query(const std::vector<QueryParameter>& declared, const Request& request) {
  for (const auto& [name, value] : request.query) {
    const QueryParameter* parameter = find_parameter(declared, name);
    if (parameter == nullptr) {
      std::vector<std::string> names;
      names.reserve(declared.size());
      for (const QueryParameter& each : declared) names.push_back(each.name);
      throw HttpError(400, "Unknown parameter",
                      fmt::format("\"{}\" is no parameter of {}", name, request.path),
                      names.empty() ? "no parameters" : fmt::format("{}", fmt::join(names, ", ")));
    }
    const std::string accepted = expectation(*parameter, value);
    if (!accepted.empty()) {
      throw HttpError(400, "Parameter not accepted", fmt::format("{} is \"{}\"", name, value),
                      accepted);
    }
  }
}

bool query_given(const Request& request, const std::string& name) {
  return look_up(request, name).second != nullptr;
}

int64_t query_integer(const Request& request, const std::string& name) {
  const auto [parameter, value] = look_up(request, name);
  return value ? parse_whole(*value).value() : parameter.absent.value_or(0);
}

double query_seconds(const Request& request, const std::string& name) {
  const auto [parameter, value] = look_up(request, name);
  return value ? parse_seconds(*value).value() : 0;
}

std::string query_text(const Request& request, const std::string& name) {
  const auto [parameter, value] = look_up(request, name);
  return value ? *value : std::string();
}

std::pair<int64_t, int64_t> query_place(const Request& request, const std::string& name) {
  const auto [parameter, value] = look_up(request, name);
  return value ? parse_place(*value).value() : std::pair<int64_t, int64_t>{0, 0};
}

}  // namespace gnomon
