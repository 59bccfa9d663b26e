// One connection of the load generator, plain or in TLS: blocking until it stands, then never.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/files.h"
#include "protocol/tls_context.h"

struct ssl_st;

namespace gnomon::bench {

// TLS to a server whose certificate comes from an authority of `ca_file`. Throws Error.
TlsContext trusting(const std::string& ca_file);

class Wire {
 public:
  // To 127.0.0.1; without `tls` plain, else the handshake is done when it returns. Throws
  // SystemError, Error.
  explicit Wire(int port, const TlsContext& tls = nullptr);
  ~Wire();
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  int descriptor() const { return socket_.get(); }
  // All of it. It must be shorter than a socket's buffer, so that sending it never waits for the
  // peer to read while the peer waits for us. Throws SystemError when the connection is broken.
  void send(std::string_view bytes);
  // Appends what is there; false when there was nothing. Throws SystemError when the connection is
  // broken or at its end.
  bool receive(std::string& bytes);

 private:
  struct EndTls {
    void operator()(ssl_st* tls) const;
  };
  [[noreturn]] void broken(int error) const;

  int port_;
  FileDescriptor socket_;
  std::unique_ptr<ssl_st, EndTls> tls_;
};

}  // namespace gnomon::bench
