#include "base/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace gnomon {
namespace {

struct Range {
  uint32_t first, last;
};

// Controls; what has no width; what changes the direction of text, or ends a line (Unicode 15).
constexpr std::array<Range, 11> kHidden = {{{0x00, 0x1f},
                                            {0x7f, 0x9f},
                                            {0xad, 0xad},
                                            {0x61c, 0x61c},
                                            {0x180e, 0x180e},
                                            {0x200b, 0x200f},
                                            {0x2028, 0x202e},
                                            {0x2060, 0x206f},
                                            {0xfeff, 0xfeff},
                                            {0xfff9, 0xfffb},
                                            {0xe0000, 0xe007f}}};

// Wide and full-width blocks.
constexpr std::array<Range, 11> kWide = {{{0x1100, 0x115f},
                                          {0x2e80, 0x303e},
                                          {0x3041, 0xa4cf},
                                          {0xac00, 0xd7a3},
                                          {0xf900, 0xfaff},
                                          {0xfe30, 0xfe6f},
                                          {0xff00, 0xff60},
                                          {0xffe0, 0xffe6},
                                          {0x1f300, 0x1f6ff},
                                          {0x1f900, 0x1f9ff},
                                          {0x20000, 0x3fffd}}};

struct Character {
  uint32_t code = 0;
  size_t bytes = 0;  // 0: no UTF-8 begins here
};

// The first one of a text that is not empty (RFC 3629).
Character first_of(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return {byte(0), 1};
  const size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc2 || byte(0) > 0xf4 || text.size() < bytes) return {};
  uint32_t code = byte(0) & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3f);
  }
  const bool too_long = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (too_long || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff)) return {};
  return {code, bytes};
}

template <size_t size>
bool is_in(const std::array<Range, size>& ranges, uint32_t code) {
  return std::ranges::any_of(ranges,
                             [code](const Range& r) { return code >= r.first && code <= r.last; });
}

bool is_hidden(uint32_t code) { return is_in(kHidden, code); }

// As JSON writes it: beyond 16 bits in two halves.
std::string json_escape(uint32_t code) {
  if (code < 0x10000) return fmt::format("\\u{:04x}", code);
  const uint32_t above = code - 0x10000;
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + (above >> 10), 0xdc00 + (above & 0x3ff));
}

}  // namespace

std::string printable_json(std::string_view json) {
  std::string out;
  out.reserve(json.size());
  while (!json.empty()) {
    const Character c = first_of(json);
    if (c.bytes == 0) {
      out += "\\ufffd";
    } else if (c.code >= 0x7f && is_hidden(c.code)) {
      out += json_escape(c.code);
    } else {
      out += json.substr(0, c.bytes);
    }
    json.remove_prefix(std::max<size_t>(c.bytes, 1));
  }
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Character c = first_of(text);
    if (c.bytes == 0) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    } else if (c.code == '\n' || c.code == '\t') {
      out += c.code == '\n' ? "\\n" : "\\t";
    } else if (is_hidden(c.code)) {
      out += fmt::format("\\u{:04x}", c.code);
    } else {
      out += text.substr(0, c.bytes);
    }
    text.remove_prefix(std::max<size_t>(c.bytes, 1));
  }
  return out;
}

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  while (!text.empty()) {
    const Character c = first_of(text);
    columns += c.bytes > 0 && is_in(kWide, c.code) ? 2 : 1;
    text.remove_prefix(std::max<size_t>(c.bytes, 1));
  }
  return columns;
}

std::string plain_number(double value) {
  if (!std::isfinite(value)) return "not finite";
  const double size = std::abs(value);
  if (size < 999.5) return fmt::format("{:.3g}", value);
  if (size >= 1e15) return value < 0 ? "under -10^15" : "over 10^15";
  const double unit = std::pow(10, std::floor(std::log10(size)) - 2);
  std::string text = fmt::format("{:.0f}", std::round(value / unit) * unit);
  for (size_t at = text.size(); at > (value < 0 ? 4U : 3U);) text.insert(at -= 3, ",");
  return text;
}

}  // namespace gnomon
