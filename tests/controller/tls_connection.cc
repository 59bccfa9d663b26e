#include "tests/controller/tls_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/errors.h"

namespace gnomon {

TlsConnection::TlsConnection(int port, int max_version)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      context_(SSL_CTX_new(TLS_client_method()), SSL_CTX_free) {
  std::signal(SIGPIPE, SIG_IGN);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{10, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    close();
    throw Error("cannot connect");
  }
  if (max_version != 0) SSL_CTX_set_max_proto_version(context_.get(), max_version);
  const unsigned char kAlpn[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  SSL_CTX_set_alpn_protos(context_.get(), kAlpn, sizeof kAlpn);
  ssl_.reset(SSL_new(context_.get()), SSL_free);
  SSL_set_fd(ssl_.get(), socket_);
  if (SSL_connect(ssl_.get()) != 1) {
    close();
    throw Error("no handshake");
  }
}

TlsConnection::~TlsConnection() { close(); }

void TlsConnection::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

void TlsConnection::say_end() { SSL_shutdown(ssl_.get()); }

bool TlsConnection::ended_in_order() const {
  return (SSL_get_shutdown(ssl_.get()) & SSL_RECEIVED_SHUTDOWN) != 0;
}

std::string TlsConnection::version() const { return SSL_get_version(ssl_.get()); }

std::string TlsConnection::protocol() const {
  const unsigned char* name = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &size);
  return {reinterpret_cast<const char*>(name), size};
}

void TlsConnection::send(const std::string& text) {
  SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
}

std::string TlsConnection::read_until(const std::string& text) {
  char buffer[16384];
  size_t searched = 0;
  while (read_.find(text, searched) == std::string::npos) {
    searched = read_.size() - std::min(read_.size(), text.size());
    const int size = SSL_read(ssl_.get(), buffer, sizeof buffer);
    if (size <= 0) break;
    read_.append(buffer, static_cast<size_t>(size));
  }
  return read_;
}

}  // namespace gnomon
