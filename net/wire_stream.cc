#include "net/wire_stream.h"

#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/stream_traits.hpp>
#include <new>
#include <string>
#include <vector>

namespace gnomon {

namespace asio = boost::asio;

struct WireStream::Tls {
  Tls(boost::beast::tcp_stream& below, SSL* ssl) : stream(below, ssl) {}
  asio::ssl::stream<boost::beast::tcp_stream&> stream;  // owns the SSL
  std::string refused_names;
};

namespace {

// Where an SSL has its Tls::refused_names. (OpenSSL's own place, the app data, is asio's.)
int names_index() {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

std::string names_of(const X509* certificate) {
  const int at = X509_get_ext_by_NID(certificate, NID_subject_alt_name, -1);
  if (at < 0) return {};
  const std::unique_ptr<BIO, int (*)(BIO*)> text(BIO_new(BIO_s_mem()), BIO_free);
  X509V3_EXT_print(text.get(), X509_get_ext(certificate, at), 0, 0);
  char* data = nullptr;
  const long size = BIO_get_mem_data(text.get(), &data);
  return {data, static_cast<size_t>(size)};
}

// OpenSSL forgets a certificate that it does not take.
int note_refused(int accepted, X509_STORE_CTX* store) {
  if (accepted == 0 && X509_STORE_CTX_get_error_depth(store) == 0) {
    const void* ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    void* names = SSL_get_ex_data(static_cast<const SSL*>(ssl), names_index());
    *static_cast<std::string*>(names) = names_of(X509_STORE_CTX_get_current_cert(store));
  }
  return accepted;
}

}  // namespace

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
  SSL_set_ex_data(ssl, names_index(), &tls_->refused_names);
  SSL_set_verify(ssl, SSL_VERIFY_PEER, note_refused);
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

std::string WireStream::peer_names() const { return tls_ ? tls_->refused_names : std::string(); }

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
