#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "base/errors.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "lab/commands/commands.h"
#include "numerics/formats.h"

namespace gnomon::cli {
namespace {

constexpr int kTableBitsMax = 16;

struct FormatsOptions {
  std::string format;
  bool json = false;
  bool no_saturate = false;
};

Format parse_format(const std::string& name) {
  try {
    return format_from_name(name);
  } catch (const Error&) {
    std::string accepted;
    for (Format format : all_formats()) {
      accepted += fmt::format("{}{}", accepted.empty() ? "one of " : ", ", format_name(format));
    }
    throw ConfigError("", 0, "--format", name, accepted);
  }
}

// strtof rounds the decimal once, to FP32; going through double would round twice. A number outside
// FP32's range is an infinity or a zero, which standard error says.
float parse_value(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  float value = std::strtof(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size()) {
    throw ConfigError("", 0, "VALUE", text, "a number such as 0.1, 1e-3, 0x1.8p3, inf or nan");
  }
  if (errno == ERANGE && (std::isinf(value) || value == 0)) {
    fmt::print(stderr, "gnomon: note: {} is {} FP32's range and is taken as {}\n", text,
               value == 0 ? "below" : "beyond", value);
  }
  return value;
}

std::string code_text(const FormatInfo& info, uint32_t code) {
  return fmt::format("0x{:0{}X}", code, (info.bits + 3) / 4);
}

boost::json::object describe(Format format) {
  const FormatInfo& info = format_info(format);
  return {{"format", std::string(format_name(format))},
          {"bits", info.bits},
          {"exponent_bits", info.exponent_bits},
          {"mantissa_bits", info.mantissa_bits},
          {"bias", info.bias},
          {"largest", info.largest},
          {"smallest_normal", info.smallest_normal},
          {"smallest_subnormal", info.smallest_subnormal},
          {"has_infinity", info.has_infinity},
          {"has_nan", info.has_nan}};
}

void print_table(const FormatsOptions& options) {
  Format format = parse_format(options.format);
  const FormatInfo& info = format_info(format);
  if (info.bits > kTableBitsMax) {
    throw ConfigError("", 0, "--format", options.format,
                      fmt::format("a format of at most {} bits for a table", kTableBitsMax));
  }
  boost::json::array codes;
  Table table({"code", ">value"});
  for (uint32_t code = 0; code < (1u << info.bits); ++code) {
    float value = decode(format, code);
    if (options.json) {
      codes.push_back({{"code", code}, {"value", json_number(value)}});
    } else {
      table.add({code_text(info, code), fmt::format("{}", value)});
    }
  }
  if (!options.json) {
    fmt::print("{}", table.text());
    return;
  }
  boost::json::object object = describe(format);
  object["codes"] = std::move(codes);
  fmt::print("{}", pretty_json(object));
}

void print_casts(const FormatsOptions& options, const std::vector<std::string>& values) {
  Format format = parse_format(options.format);
  const FormatInfo& info = format_info(format);
  if (values.empty()) throw ConfigError("", 0, "VALUE", "", "at least one number");
  boost::json::array casts;
  Table table({"input", "code", ">value"});
  for (const std::string& text : values) {
    float input = parse_value(text);
    uint32_t code = encode(format, input, !options.no_saturate);
    float value = decode(format, code);
    casts.push_back({{"input", text},
                     {"input_fp32", json_number(input)},
                     {"code", code},
                     {"value", json_number(value)}});
    table.add({text, code_text(info, code), fmt::format("{}", value)});
  }
  if (!options.json) {
    fmt::print("{}", table.text());
    return;
  }
  boost::json::object object = describe(format);
  object["saturate"] = !options.no_saturate;
  object["casts"] = std::move(casts);
  fmt::print("{}", pretty_json(object));
}

}  // namespace

void add_formats_commands(Command& app, Context&) {
  Command* formats = app.add_subcommand("formats", "Number formats: every code, and casts to them");
  formats->require_subcommand(1);

  auto options = std::make_shared<FormatsOptions>();
  Command* table = formats->add_subcommand("table", "Every code of a format and its value");
  table
      ->add_option("--format", options->format,
                   "fp32, bf16, e4m3, e5m2, e3m2, e2m3, e2m1, e8m3 ... e8m6")
      ->required();
  table->add_flag("--json", options->json, "Print JSON");
  table->footer("Example:\n  gnomon formats table --format e4m3");
  table->callback([options] { print_table(*options); });

  Command* cast = formats->add_subcommand(
      "cast", "VALUE... rounded to a format: its code and the value after rounding");
  cast->add_option("--format", options->format, "As for `formats table`")->required();
  cast->add_flag("--no-saturate", options->no_saturate,
                 "Overflow becomes infinity where the format has one, else NaN");
  cast->add_flag("--json", options->json, "Print JSON; NaN and infinities as strings");
  cast->allow_extras();  // so that -inf and -nan are values, in the order given
  cast->footer("Example:\n  gnomon formats cast --format e4m3 0.1 500 -inf nan");
  cast->callback([options, cast] { print_casts(*options, cast->remaining()); });
}

}  // namespace gnomon::cli
