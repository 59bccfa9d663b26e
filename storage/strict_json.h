// JSON from files that are not trusted: a repeated key, a syntax error or anything behind the value
// is a FormatError that names the file and the byte. Used for headers, manifests and JSONL lines.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace gnomon {

// Where a JSON text stands, for messages.
struct JsonSource {
  std::string file;
  int64_t offset_bytes = 0;  // of the text's first byte in the file
};

// `expected` says in words what should have stood there ("a JSON object with the shards").
boost::json::value parse_strict_json(std::string_view text, const JsonSource& source,
                                     const std::string& expected);

// Members of an object; a missing member, another type or a negative number is a FormatError at the
// text's start.
const boost::json::value& json_member(const boost::json::object& object, std::string_view key,
                                      const JsonSource& source);
std::string json_string(const boost::json::object& object, std::string_view key,
                        const JsonSource& source);
int64_t json_count(const boost::json::object& object, std::string_view key,
                   const JsonSource& source);
const boost::json::array& json_array(const boost::json::object& object, std::string_view key,
                                     const JsonSource& source);

// The value as a number of something: an integer in [0, 2^63), or -1.
int64_t json_as_count(const boost::json::value& value);

}  // namespace gnomon
