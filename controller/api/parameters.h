// Query parameters, declared beside the route that takes them: the router refuses what is not
// declared, what stands there twice and what is out of range before a handler runs, and the
// document of the API lists them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "controller/api/request.h"

namespace gnomon {

struct QueryParameter {
  enum class Kind {
    kInteger,  // min to max
    kSeconds,  // 0 to max; "30", "30s" or "1.5s"
    kText,     // at most max characters
    kChoice,   // one of choices
    kPlace,    // "A.B": where a list ordered by two numbers goes on, behind that row
  };
  std::string name;
  std::string help;  // a sentence
  Kind kind = Kind::kInteger;
  int64_t min = 0;
  int64_t max = INT64_MAX;
  std::optional<int64_t> absent = {};  // kInteger: what counts when it is not given
  std::vector<std::string> choices = {};
};

// How long a request may wait for work, at most.
constexpr int64_t kWaitMaxSeconds = 120;

inline constexpr int64_t kTextParameterMax = 200;  // characters

QueryParameter integer_parameter(std::string name, std::string help, int64_t min, int64_t max,
                                 std::optional<int64_t> absent);
QueryParameter seconds_parameter(std::string name, std::string help, int64_t max);
QueryParameter text_parameter(std::string name, std::string help,
                              int64_t characters_max = kTextParameterMax);
QueryParameter choice_parameter(std::string name, std::string help,
                                std::vector<std::string> choices);
QueryParameter place_parameter(std::string name, std::string help);

// "a=1&b=x%20y" decoded. Throws HttpError 400 on a broken escape and on a name that comes twice.
std::map<std::string, std::string> parse_query(std::string_view query);
std::string percent_decode(std::string_view text, bool plus_is_space);
// `text` as one value of a query.
std::string percent_encode(std::string_view text);

// Throws HttpError 400 that names the parameter, its value and what would be accepted.
void check_query(const std::vector<QueryParameter>& declared, const Request& request);

// Values of parameters that check_query() has let through. Asking for one that the route does not
// declare is a programming error (std::logic_error).
bool query_given(const Request& request, const std::string& name);
int64_t query_integer(const Request& request,
                      const std::string& name);                         // absent: its default, or 0
double query_seconds(const Request& request, const std::string& name);  // absent: 0
std::string query_text(const Request& request, const std::string& name);  // absent: ""
std::pair<int64_t, int64_t> query_place(const Request& request, const std::string& name);  // {0, 0}

}  // namespace gnomon
