// How a session's TLS begins and ends.
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <spdlog/spdlog.h>

#include <boost/asio/ssl/error.hpp>

#include "controller/api/session.h"

namespace gnomon {
namespace {

namespace asio = boost::asio;

// The other end may take nothing more; nobody waits for it longer.
constexpr auto kFarewell = std::chrono::seconds(2);

bool is_plain_http(const boost::system::error_code& error) {
  return error.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

}  // namespace

bool Session::shake_hands() {
  if (!stream_.is_secure()) return true;
  stream_.expires_after(options_.read_timeout);
  boost::system::error_code error;
  stream_.async_handshake((*yield_)[error]);
  if (!error) return true;
  stream_.drop_tls();
  if (services_.stopping) return false;
  services_.metrics.update([](DaemonNumbers& n) { n.tls_handshake_failures += 1; });
  spdlog::debug("a TLS handshake failed: {}", error.message());
  if (is_plain_http(error)) {
    // No problem document: a trainer would take that for a refusal of what it reports.
    answer_plainly(
        {400, "text/plain", "This port speaks TLS: use https:// instead of http://.\n", {}, false});
  }
  // So that the client reads what was wrong, which a reset could take from it.
  if (error.category() == asio::error::get_ssl_category()) linger();
  return false;
}

void Session::end_writing() {
  boost::system::error_code ignored;
  if (stream_.is_secure()) {
    stream_.expires_after(kFarewell);
    stream_.async_close_notify((*yield_)[ignored]);
    stream_.drop_tls();
  }
  stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

}  // namespace gnomon
