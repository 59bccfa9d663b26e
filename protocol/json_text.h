// JSON text to Boost.JSON values, exactly: Boost 1.81 reads doubles with an error of up to an ulp,
// and we compare losses bit for bit, so numbers are read with std::from_chars here. Repeated
// members are refused.
#pragma once

#include <boost/json/value.hpp>
#include <string_view>

namespace gnomon {

// Throws JsonError (path "") with the byte offset of a syntax error. The value's parts lie in
// `memory`, which must live longer where it is not counted.
boost::json::value parse_json_exactly(std::string_view text, boost::json::storage_ptr memory = {});

}  // namespace gnomon
