#include <boost/asio/ip/address.hpp>
#include <charconv>
#include <string_view>

#include "controller/api/server.h"

namespace gnomon {

ServerOptions parse_listen(const std::string& text) {
  auto refuse = [&] {
    return ConfigError("command line", 0, "--listen", text,
                       "ADDRESS:PORT, for example 127.0.0.1:7717 or [::1]:0");
  };
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) {
    throw refuse();
  }
  ServerOptions options;
  options.address = text.substr(0, colon);
  if (options.address.starts_with('[') && options.address.ends_with(']')) {
    options.address = options.address.substr(1, options.address.size() - 2);
  }
  std::string_view port = std::string_view(text).substr(colon + 1);
  auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), options.port);
  if (options.address.empty() || error != std::errc() || end != port.data() + port.size()) {
    throw refuse();
  }
  if (options.address == "localhost") {
    options.address = "127.0.0.1";
  }
  boost::system::error_code unreadable;
  boost::asio::ip::make_address(options.address, unreadable);
  if (unreadable) throw refuse();
  return options;
}

bool is_loopback(const ServerOptions& options) {
  boost::system::error_code unreadable;
  const auto address = boost::asio::ip::make_address(options.address, unreadable);
  return !unreadable && address.is_loopback();
}

}  // namespace gnomon
