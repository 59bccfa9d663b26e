#include "lab/load/wire.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/errors.h"

namespace gnomon::bench {

TlsContext trusting(const std::string& ca_file) {
  TlsContext context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (!context || SSL_CTX_load_verify_file(context.get(), ca_file.c_str()) != 1) {
    throw Error(fmt::format("no authority of TLS in {}", ca_file));
  }
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  return context;
}

void Wire::EndTls::operator()(ssl_st* tls) const { SSL_free(tls); }

void Wire::broken(int error) const {
  throw SystemError("speak to", fmt::format("127.0.0.1:{}", port_),
                    error == 0 ? ECONNRESET : error);
}

Wire::Wire(int port, const TlsContext& tls)
    : port_(port), socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw SystemError("connect to", fmt::format("127.0.0.1:{}", port), errno);
  }
  const int on = 1;
  ::setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (tls) {
    tls_.reset(SSL_new(tls.get()));
    X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(tls_.get()), "127.0.0.1");
    if (SSL_set_fd(tls_.get(), socket_.get()) != 1 || SSL_connect(tls_.get()) != 1) {
      throw Error(fmt::format("no TLS with 127.0.0.1:{}", port));
    }
  }
  ::fcntl(socket_.get(), F_SETFL, O_NONBLOCK);
}

Wire::~Wire() = default;

void Wire::send(std::string_view bytes) {
  if (tls_) {
    if (SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size())) <= 0) broken(errno);
    return;
  }
  while (!bytes.empty()) {
    const ssize_t size = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) broken(errno);
    bytes.remove_prefix(static_cast<size_t>(size));
  }
}

bool Wire::receive(std::string& bytes) {
  std::array<char, 16384> room;  // a TLS record's most, so that none stays behind in the library
  if (tls_) {
    const int size = SSL_read(tls_.get(), room.data(), std::ssize(room));
    if (size <= 0) {
      if (SSL_get_error(tls_.get(), size) == SSL_ERROR_WANT_READ) return false;
      broken(errno);
    }
    bytes.append(room.data(), static_cast<size_t>(size));
    return true;
  }
  const ssize_t size = ::recv(socket_.get(), room.data(), room.size(), 0);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (size <= 0) broken(size < 0 ? errno : 0);
  bytes.append(room.data(), static_cast<size_t>(size));
  return true;
}

}  // namespace gnomon::bench
