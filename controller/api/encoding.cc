#include "controller/api/encoding.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <new>

#include "base/hash.h"

namespace gnomon {
namespace {

// 15 bits of window, and a gzip header instead of zlib's.
constexpr int kGzipWindow = 15 + 16;
// Level 1: rows of the ledger shrink to a fifth of their size at it; 6 would save a quarter of the
// rest for three times the time.
constexpr int kLevel = 1;

// What a stream holds is given back, also where there is no memory for what comes out of it.
template <int (*end)(z_stream*)>
struct Ending {
  z_stream& stream;
  ~Ending() { end(&stream); }
};

std::string_view trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

// Calls `apply` with each element of a comma-separated list.
template <typename Apply>
void for_each_element(std::string_view list, Apply apply) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    apply(trimmed(list.substr(0, end)));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
}

// "gzip;q=0.5" as its name and weight; a weight that cannot be read counts as 0.
std::pair<std::string, double> weighted(std::string_view element) {
  const size_t semicolon = std::min(element.find(';'), element.size());
  std::string name(trimmed(element.substr(0, semicolon)));
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (semicolon == element.size()) return {name, 1};
  const std::string_view weight = trimmed(element.substr(semicolon + 1));
  double value = 0;
  if (weight.starts_with("q=") || weight.starts_with("Q=")) {
    std::from_chars(weight.data() + 2, weight.data() + weight.size(), value);
  }
  return {name, value};
}

}  // namespace

bool accepts_gzip(std::string_view accept_encoding) {
  double gzip_weight = -1;
  double any_weight = -1;
  for_each_element(accept_encoding, [&](std::string_view element) {
    const auto [name, weight] = weighted(element);
    if (name == "gzip" || name == "x-gzip") gzip_weight = weight;
    if (name == "*") any_weight = weight;
  });
  return (gzip_weight >= 0 ? gzip_weight : any_weight) > 0;
}

bool is_compressible(std::string_view content_type) {
  constexpr std::array<std::string_view, 5> kText = {
      "text/", "application/json", "application/problem+json", "application/toml", "image/svg+xml"};
  return content_type != "text/event-stream" &&
         std::ranges::any_of(kText, [&](auto type) { return content_type.starts_with(type); });
}

std::string gzip(std::string_view text) {
  z_stream stream{};
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kGzipWindow, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::bad_alloc();
  }
  const Ending<deflateEnd> ending{stream};
  std::string out;
  out.resize(deflateBound(&stream, static_cast<uLong>(text.size())));
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FINISH);  // the bound is enough for all of it
  out.resize(stream.total_out);
  return out;
}

std::string entity_tag(std::string_view body) {
  return fmt::format("W/\"{}\"", hex64(hash64(body.data(), body.size())));
}

bool matches_entity_tag(std::string_view if_none_match, std::string_view tag) {
  const auto opaque = [](std::string_view text) {
    return text.starts_with("W/") ? text.substr(2) : text;
  };
  bool matches = false;
  for_each_element(if_none_match, [&](std::string_view element) {
    matches = matches || element == "*" || opaque(element) == opaque(tag);
  });
  return matches;
}

}  // namespace gnomon
