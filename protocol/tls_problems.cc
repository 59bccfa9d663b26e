#include "protocol/tls_problems.h"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <boost/asio/ssl/error.hpp>

namespace gnomon {
namespace {

std::string explain_certificate(const TlsProblem& problem) {
  switch (problem.verify_error) {
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return "its certificate comes from an authority that is not trusted here; name that "
             "authority's certificate as ca_file (controller.ca_file, --ca-file, GNOMON_CA_FILE)";
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return "its certificate has expired; it must be renewed where gnomond runs (or this "
             "machine's clock is wrong)";
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return "its certificate is not valid yet; look at the clocks of both machines";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return fmt::format("its certificate is for {}, not for {}; use a URL with one of its names",
                         problem.peer_names.empty() ? "no name" : problem.peer_names, problem.host);
    default:
      return fmt::format("its certificate is not accepted: {}",
                         X509_verify_cert_error_string(problem.verify_error));
  }
}

}  // namespace

std::string explain(const TlsProblem& problem) {
  if (problem.error == boost::asio::ssl::error::stream_truncated) {
    return "the connection ended without a word";
  }
  if (problem.error.category() != boost::asio::error::get_ssl_category()) return {};
  constexpr const char* kOwn =
      "name it as certificate_file and key_file (of [controller], as options, or as "
      "GNOMON_CERTIFICATE_FILE and GNOMON_KEY_FILE)";
  switch (ERR_GET_REASON(static_cast<unsigned long>(problem.error.value()))) {
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return explain_certificate(problem);
    case SSL_R_WRONG_VERSION_NUMBER:
    case SSL_R_PACKET_LENGTH_TOO_LONG:
      return "it does not speak TLS there; is it http:// instead of https://?";
    case SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED:
    case SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE:
      return fmt::format("it asks for a client's certificate; {}", kOwn);
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_SSLV3_ALERT_BAD_CERTIFICATE:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN:
    case SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED:
      return fmt::format("it does not accept this client's certificate ({}); {}",
                         problem.error.message(), kOwn);
    default:
      return "TLS failed: " + problem.error.message();
  }
}

}  // namespace gnomon
