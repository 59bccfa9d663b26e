#include "controller/api/request_head.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>

#include "controller/api/parameters.h"
#include "controller/auth/http_error.h"

namespace gnomon {
namespace {

// A target in absolute form names its host, which goes before the field of that name (RFC 9112,
// 3.2.2).
void parse_absolute_form(RequestHead& head) {
  const std::string start = lower(head.target.substr(0, 8));
  const size_t scheme = start.starts_with("http://") ? 7 : start == "https://" ? 8 : 0;
  if (scheme == 0) return;
  const std::string_view rest = head.target.substr(scheme);
  const size_t end = std::min(rest.find_first_of("/?"), rest.size());
  head.host = rest.substr(0, end);
  head.target = end == rest.size() ? std::string_view("/") : rest.substr(end);
  if (head.host.empty() || head.host.find('@') != std::string_view::npos) {
    throw HttpError(400, "Malformed request", "the target names no host, or somebody at one",
                    "http://HOST/PATH, or /PATH");
  }
}

}  // namespace

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

Request request_of(RequestHead& head) {
  if (head.hosts > 1 || (head.hosts == 0 && head.version >= 11)) {
    throw HttpError(400, "Malformed request", fmt::format("{} Host fields", head.hosts),
                    "one Host field (RFC 9112, section 3.2)");
  }
  if (!head.transfer_encoding.empty() && lower(head.transfer_encoding) != "chunked") {
    throw HttpError(501, "Unknown transfer coding",
                    fmt::format("Transfer-Encoding is \"{}\"", head.transfer_encoding),
                    "chunked, or a Content-Length");
  }
  parse_absolute_form(head);
  Request request;
  request.method = std::string(head.method);
  const size_t question = std::min(head.target.find('?'), head.target.size());
  request.path = question == 0 ? "/" : percent_decode(head.target.substr(0, question), false);
  request.target = std::string(head.target);
  request.query = parse_query(question < head.target.size() ? head.target.substr(question + 1)
                                                            : std::string_view());
  const std::string type = lower(head.content_type);
  request.content_type = type.substr(0, type.find_first_of("; "));
  request.last_event_id = std::string(head.last_event_id);
  return request;
}

std::string http_date(double seconds) {
  return fmt::format("{:%a, %d %b %Y %H:%M:%S GMT}",
                     fmt::gmtime(static_cast<std::time_t>(seconds)));
}

}  // namespace gnomon
