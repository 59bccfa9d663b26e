#include "protocol/tls_context.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <ctime>
#include <string_view>
#include <vector>

#include "base/named_file.h"

namespace gnomon {
namespace {

using Which = TlsFileError::Which;

template <auto Free>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Freed<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;

// ALPN's list of names, each behind its length.
constexpr unsigned char kAlpn[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};

constexpr const char* kCertificateAccepted = "PEM of a certificate, then of those that signed it";
constexpr const char* kKeyAccepted = "PEM of the certificate's private key, not encrypted";
constexpr const char* kCaAccepted = "PEM of at least one authority's certificate";

// What OpenSSL says of its newest error, and forgets the others.
std::string openssl_error() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? "OpenSSL gives no reason" : reason;
}

Bio opened(Which which, const std::string& file, const char* accepted, std::string& text) {
  try {
    text = read_named_file(file, kPemFileBytesMax);
  } catch (const Error& error) {
    throw TlsFileError(which, file, error.what(), accepted);
  }
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

// A terminal must not be asked.
int no_password(char*, int, int, void*) { return 0; }

std::vector<Certificate> read_certificates(Which which, const std::string& file,
                                           const char* accepted, std::string& text) {
  const Bio bio = opened(which, file, accepted, text);
  std::vector<Certificate> found;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr)) {
    found.emplace_back(next);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string error = openssl_error();
  if (!at_end) throw TlsFileError(which, file, "it is damaged: " + error, accepted);
  if (found.empty()) throw TlsFileError(which, file, "it has no certificate", accepted);
  return found;
}

double seconds_of(const ASN1_TIME* time) {
  std::tm parts{};
  ASN1_TIME_to_tm(time, &parts);
  return static_cast<double>(::timegm(&parts));
}

void check_time(const std::string& file, const X509* certificate) {
  const double now = static_cast<double>(std::time(nullptr));
  const double first = seconds_of(X509_get0_notBefore(certificate));
  const double last = seconds_of(X509_get0_notAfter(certificate));
  const auto day = [](double time) {
    return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC", fmt::gmtime(static_cast<std::time_t>(time)));
  };
  if (last < now) {
    throw TlsFileError(Which::kCertificate, file, "it ended on " + day(last),
                       "a certificate that is valid now");
  }
  if (first > now) {
    throw TlsFileError(Which::kCertificate, file, "it begins on " + day(first),
                       "a certificate that is valid now");
  }
}

// The certificate of `files` and its key, for either end. Returns when it ends.
double use_certificate(SSL_CTX* context, const TlsFiles& files, TlsPem& pem) {
  const std::vector<Certificate> chain = read_certificates(Which::kCertificate, files.certificate,
                                                           kCertificateAccepted, pem.certificate);
  check_time(files.certificate, chain.front().get());
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1) {
    throw TlsFileError(Which::kCertificate, files.certificate, openssl_error(),
                       kCertificateAccepted);
  }
  for (size_t i = 1; i < chain.size(); ++i) SSL_CTX_add1_chain_cert(context, chain[i].get());
  const Bio bio = opened(Which::kKey, files.key, kKeyAccepted, pem.key);
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  if (!key) throw TlsFileError(Which::kKey, files.key, "no key: " + openssl_error(), kKeyAccepted);
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1) {
    ERR_clear_error();
    throw TlsFileError(Which::kKey, files.key, "it is not the key of " + files.certificate,
                       kKeyAccepted);
  }
  return seconds_of(X509_get0_notAfter(chain.front().get()));
}

void trust(SSL_CTX* context, const std::string& file, TlsPem& pem) {
  for (const Certificate& each : read_certificates(Which::kCa, file, kCaAccepted, pem.ca)) {
    X509_STORE_add_cert(SSL_CTX_get_cert_store(context), each.get());
    SSL_CTX_add_client_CA(context, each.get());
  }
}

int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_length,
                    const unsigned char* in, unsigned int in_length, void*) {
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(&chosen, out_length, kAlpn, sizeof kAlpn, in, in_length);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_ALERT_FATAL;
}

TlsContext make_context(const SSL_METHOD* method) {
  TlsContext context(SSL_CTX_new(method), SSL_CTX_free);
  if (!context) throw Error("OpenSSL has no TLS: " + openssl_error());
  return context;
}

}  // namespace

TlsFileError::TlsFileError(Which which, std::string file, const std::string& wrong,
                           std::string accepted)
    : Error(fmt::format("{}: {}; accepted: {}", file, wrong, accepted)),
      which_(which),
      file_(std::move(file)),
      wrong_(wrong),
      accepted_(std::move(accepted)) {}

ServerTls make_server_tls(const TlsFiles& files, ClientCertificates clients) {
  ServerTls tls{make_context(TLS_server_method())};
  SSL_CTX* context = tls.context.get();
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  SSL_CTX_set_cipher_list(context, kTls12Ciphers);
  // A resumed session would pass by authorities that have changed since.
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(context, 0);
  TlsPem pem;
  tls.expires_at = use_certificate(context, files, pem);
  SSL_CTX_set_alpn_select_cb(context, choose_protocol, nullptr);
  if (!files.ca.empty()) {
    trust(context, files.ca, pem);
    const bool required = clients == ClientCertificates::kRequired;
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | (required ? SSL_VERIFY_FAIL_IF_NO_PEER_CERT : 0),
                       nullptr);
  }
  return tls;
}

TlsPem read_client_tls(const TlsFiles& files) {
  const TlsContext context = make_context(TLS_client_method());
  TlsPem pem;
  if (!files.certificate.empty()) use_certificate(context.get(), files, pem);
  if (!files.ca.empty()) trust(context.get(), files.ca, pem);
  return pem;
}

}  // namespace gnomon
