#include "controller/api/wire_stream.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <new>
#include <vector>

namespace gnomon {

namespace asio = boost::asio;

// The other end may take nothing more; nobody waits for it longer.
static constexpr auto kFarewell = std::chrono::seconds(2);

struct WireStream::Tls {
  Tls(boost::beast::tcp_stream& below, SSL* ssl) : stream(below, ssl) {}
  asio::ssl::stream<boost::beast::tcp_stream&> stream;  // owns the SSL
};

WireStream::WireStream(asio::ip::tcp::socket socket, const TlsContext& tls)
    : tcp_(std::move(socket)) {
  if (!tls) return;
  SSL* ssl = SSL_new(tls.get());
  if (ssl == nullptr) throw std::bad_alloc();
  tls_ = std::make_unique<Tls>(tcp_, ssl);
}

WireStream::~WireStream() = default;

void WireStream::drop_tls() { tls_.reset(); }

void WireStream::end_writing(asio::yield_context yield) {
  error_code ignored;
  if (is_secure()) {
    expires_after(kFarewell);
    async_close_notify(yield[ignored]);
    drop_tls();
  }
  socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
}

bool WireStream::is_plain_http(const error_code& error) {
  return error.category() == asio::error::get_ssl_category() &&
         ERR_GET_REASON(static_cast<unsigned long>(error.value())) == SSL_R_HTTP_REQUEST;
}

void WireStream::start_read(asio::mutable_buffer buffer, Done<size_t> done) {
  if (tls_) {
    tls_->stream.async_read_some(buffer, std::move(done));
  } else {
    tcp_.async_read_some(buffer, std::move(done));
  }
}

// A record takes one buffer: a head and its body go in one, as in one segment without TLS.
void WireStream::start_write(const Parts& parts, Done<size_t> done) {
  constexpr size_t kRecordMax = 16 << 10;
  if (!tls_) return tcp_.async_write_some(parts, std::move(done));
  if (parts.count() <= 1 || parts.begin()->size() >= kRecordMax) {
    const asio::const_buffer first = parts.count() == 0 ? asio::const_buffer() : *parts.begin();
    return tls_->stream.async_write_some(first, std::move(done));
  }
  std::vector<char> joined(std::min(asio::buffer_size(parts), kRecordMax));
  asio::buffer_copy(asio::buffer(joined), parts);
  const asio::const_buffer record(joined.data(), joined.size());
  tls_->stream.async_write_some(record,
                                [kept = std::move(joined), done = std::move(done)](
                                    error_code error, size_t size) mutable { done(error, size); });
}

void WireStream::start_handshake(Done<> done) {
  tls_->stream.async_handshake(asio::ssl::stream_base::server, std::move(done));
}

void WireStream::start_close_notify(Done<> done) {
  // As if the other end had said so already: asio would wait for its word.
  SSL_set_shutdown(tls_->stream.native_handle(),
                   SSL_get_shutdown(tls_->stream.native_handle()) | SSL_RECEIVED_SHUTDOWN);
  tls_->stream.async_shutdown(std::move(done));
}

}  // namespace gnomon
