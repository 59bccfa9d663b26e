// Content coding and validators of HTTP (RFC 9110): gzip of answers, entity tags.
#pragma once

#include <string>
#include <string_view>

namespace gnomon {

// Answers below this size travel as they are: their headers are as large.
inline constexpr size_t kCompressFrom = 1024;

// True when Accept-Encoding asks for gzip: "gzip", "x-gzip" or "*" with a weight above 0.
bool accepts_gzip(std::string_view accept_encoding);
// True when bytes of this content type are text that gzip makes smaller.
bool is_compressible(std::string_view content_type);
std::string gzip(std::string_view text);

// A weak entity tag of these bytes, with its quotes; weak, because gzip changes the bytes sent.
std::string entity_tag(std::string_view body);
// True when If-None-Match names `tag`, by the weak comparison.
bool matches_entity_tag(std::string_view if_none_match, std::string_view tag);

}  // namespace gnomon
