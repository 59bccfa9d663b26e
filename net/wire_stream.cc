#include "net/wire_stream.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <new>
#include <vector>

namespace gnomon {

namespace asio = boost::asio;

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

void WireStream::expect(const std::string& host) {
  SSL* ssl = tls_->stream.native_handle();
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  boost::system::error_code no_address;
  asio::ip::make_address(host, no_address);
  if (no_address) {
    SSL_set_tlsext_host_name(ssl, host.c_str());
    SSL_set1_host(ssl, host.c_str());
  } else {
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str());
  }
}

long WireStream::verify_error() const {
  return tls_ ? SSL_get_verify_result(tls_->stream.native_handle()) : X509_V_OK;
}

std::string WireStream::peer_names() const {
  X509* peer = tls_ ? SSL_get0_peer_certificate(tls_->stream.native_handle()) : nullptr;
  const int at = peer == nullptr ? -1 : X509_get_ext_by_NID(peer, NID_subject_alt_name, -1);
  if (at < 0) return {};
  const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new(BIO_s_mem()), BIO_free);
  X509V3_EXT_print(text.get(), X509_get_ext(peer, at), 0, 0);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return {data, static_cast<size_t>(size)};
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

void WireStream::start_handshake(Role role, Done<> done) {
  tls_->stream.async_handshake(
      role == Role::kClient ? asio::ssl::stream_base::client : asio::ssl::stream_base::server,
      std::move(done));
}

void WireStream::start_close_notify(Done<> done) {
  // As if the other end had said so already: asio would wait for its word.
  SSL_set_shutdown(tls_->stream.native_handle(),
                   SSL_get_shutdown(tls_->stream.native_handle()) | SSL_RECEIVED_SHUTDOWN);
  tls_->stream.async_shutdown(std::move(done));
}

}  // namespace gnomon
