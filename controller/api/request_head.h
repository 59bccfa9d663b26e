// From the head of an HTTP request to what routes see of it (RFC 9110, RFC 9112). Knows no library.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "controller/api/request.h"

namespace gnomon {

// As it was sent; absent fields are empty.
struct RequestHead {
  int version = 11;  // 10: HTTP/1.0
  std::string_view method;
  std::string_view target;
  size_t hosts = 1;  // how many Host fields there are
  std::string_view host;
  std::string_view content_type;
  std::string_view transfer_encoding;
  std::string_view last_event_id;
};

// Without body and principal. `head.target` and `head.host` become those of a target in absolute
// form ("http://host/path", as for a proxy). Throws HttpError: 400 without a Host or with more than
// one, 501 for a transfer coding other than chunked.
Request request_of(RequestHead& head);

// Lower case of ASCII alone: names of codings, media types.
std::string lower(std::string_view text);

// "Sun, 06 Nov 1994 08:49:37 GMT" of seconds since the epoch.
std::string http_date(double seconds);

}  // namespace gnomon
