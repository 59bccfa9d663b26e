#include "protocol/url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <string_view>

#include "base/errors.h"

namespace gnomon {
namespace {

[[noreturn]] void refuse_url(const std::string& url) {
  // What stands before an @ may be a password.
  const bool has_user = url.find('@') != std::string::npos;
  throw ConfigError("", 0, "controller", has_user ? "(not shown)" : "\"" + url + "\"",
                    has_user ? "a URL without a user: a token_file says who asks"
                             : "a URL like \"http://127.0.0.1:7717\" or \"https://HOST:PORT\"");
}

}  // namespace

Url parse_url(const std::string& url) {
  Url result;
  constexpr std::string_view kPlain = "http://";
  constexpr std::string_view kSecure = "https://";
  result.secure = url.starts_with(kSecure);
  result.port = result.secure ? "443" : "80";
  if (!result.secure && !url.starts_with(kPlain)) refuse_url(url);
  std::string rest = url.substr(result.secure ? kSecure.size() : kPlain.size());
  if (!rest.empty() && rest.back() == '/') rest.pop_back();
  result.host_header = rest;
  size_t colon = rest.rfind(':');
  if (!rest.empty() && rest[0] == '[') {
    const size_t close = rest.find(']');
    if (close == std::string::npos) refuse_url(url);
    result.host = rest.substr(1, close - 1);
    colon = close + 1 < rest.size() ? close + 1 : std::string::npos;
    if (colon != std::string::npos && rest[colon] != ':') refuse_url(url);
  } else {
    result.host = rest.substr(0, colon);
  }
  if (colon != std::string::npos) result.port = rest.substr(colon + 1);
  const bool digits = !result.port.empty() && result.port.size() <= 5 &&
                      std::all_of(result.port.begin(), result.port.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || std::stoi(result.port) < 1 || std::stoi(result.port) > 65535) refuse_url(url);
  if (result.host.empty() || result.host.find_first_of("/?#@ ") != std::string::npos)
    refuse_url(url);
  return result;
}

bool Url::is_loopback() const {
  in_addr four{};
  in6_addr six{};
  if (::inet_pton(AF_INET, host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  if (::inet_pton(AF_INET6, host.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return host == "localhost";
}

}  // namespace gnomon
