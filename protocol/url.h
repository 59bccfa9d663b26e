// Where gnomond is, taken apart.
#pragma once

#include <string>

namespace gnomon {

struct Url {
  bool secure = false;  // https
  std::string host;     // without the brackets of an IPv6 address
  std::string port;
  std::string host_header;
  // Whether nothing that is sent there leaves this machine.
  bool is_loopback() const;
};

// "http://127.0.0.1:7717", "https://gnomon.example". Throws ConfigError (key controller), also for
// a URL with a user, a path or a query.
Url parse_url(const std::string& url);

}  // namespace gnomon
