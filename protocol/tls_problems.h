// Why TLS with a controller did not come about, in words that say what to do. Private to this
// folder: it brings Asio with it.
#pragma once

#include <boost/system/error_code.hpp>
#include <string>

namespace gnomon {

struct TlsProblem {
  boost::system::error_code error;
  long verify_error = 0;   // OpenSSL's X509_V_ERR_…
  std::string peer_names;  // what the certificate is for
  std::string host;        // what it should be for
};

// Empty when the error is none of TLS.
std::string explain(const TlsProblem& problem);

}  // namespace gnomon
