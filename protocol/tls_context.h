// What TLS takes from files (certificates, keys, authorities; all PEM): checked for both ends, and
// made ready for a server's connections. Those have TLS 1.2 or 1.3, HTTP/1.1 by ALPN, and neither
// renegotiation nor compression nor resumption.
#pragma once

#include <memory>
#include <string>

#include "base/errors.h"

struct ssl_ctx_st;

namespace gnomon {

// OpenSSL's SSL_CTX. Connections that were made with it keep what they need of it.
using TlsContext = std::shared_ptr<ssl_ctx_st>;

// TLS 1.2 gets forward secrecy and authenticated encryption; TLS 1.3 has nothing else.
inline constexpr const char* kTls12Ciphers = "ECDHE+AESGCM:ECDHE+CHACHA20";

struct TlsFiles {
  std::string certificate;  // the own one first, then those that lead to its authority
  std::string key;
  std::string ca;  // authorities that the peer's certificate may come from
};

// One of the files cannot be used. what() names it and says why.
class TlsFileError : public Error {
 public:
  enum class Which { kCertificate, kKey, kCa };
  TlsFileError(Which which, std::string file, const std::string& wrong, std::string accepted);
  Which which() const { return which_; }
  const std::string& file() const { return file_; }
  const std::string& wrong() const { return wrong_; }
  const std::string& accepted() const { return accepted_; }

 private:
  Which which_;
  std::string file_;
  std::string wrong_;
  std::string accepted_;
};

struct ServerTls {
  TlsContext context;
  double expires_at = 0;  // of the certificate, seconds since the epoch
};

// Clients' certificates matter only with `files.ca`: kOptional checks one where it is sent.
enum class ClientCertificates { kRequired, kOptional };

// Throws TlsFileError, also when the certificate is not valid now or is not the key's.
ServerTls make_server_tls(const TlsFiles& files, ClientCertificates clients);

// What such files hold.
struct TlsPem {
  std::string certificate;
  std::string key;
  std::string ca;
};

// A client may have none of these files. Throws TlsFileError as make_server_tls does.
TlsPem read_client_tls(const TlsFiles& files);

}  // namespace gnomon
