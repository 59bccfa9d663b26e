// As RawConnection, in TLS: what a test says goes over the wire, and how the connection ended can
// be asked.
#pragma once

#include <memory>
#include <string>

struct ssl_st;
struct ssl_ctx_st;

namespace gnomon {

class TlsConnection {
 public:
  // Takes any certificate. With `max_version` (TLS1_2_VERSION, say) nothing newer. Throws Error
  // when there is no handshake.
  explicit TlsConnection(int port, int max_version = 0);
  ~TlsConnection();
  TlsConnection(const TlsConnection&) = delete;
  TlsConnection& operator=(const TlsConnection&) = delete;

  void send(const std::string& text);
  // Reads until `text` has come or the connection ends; returns everything read so far.
  std::string read_until(const std::string& text);
  // True when the other end has said that nothing more comes (close_notify).
  bool ended_in_order() const;
  // Says so itself, and leaves the connection open.
  void say_end();
  // Closes without a word.
  void close();
  std::string version() const;   // "TLSv1.3"
  std::string protocol() const;  // by ALPN

 private:
  int socket_ = -1;
  std::shared_ptr<ssl_ctx_st> context_;
  std::shared_ptr<ssl_st> ssl_;
  std::string read_;
};

}  // namespace gnomon
