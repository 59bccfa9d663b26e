// How a client reaches gnomond and who it says it is: the same for trainers, verifiers and the
// command line.
#pragma once

#include <cstdint>
#include <string>

#include "base/errors.h"

namespace gnomon {

// All files are PEM, but for token_file. Certificates, keys and tokens are read anew before each
// connection, so that those that were replaced are used without a restart.
struct ClientOptions {
  std::string url;                    // http://HOST:PORT or https://HOST:PORT
  std::string token_file = {};        // its first line is the token
  std::string token = {};             // only without token_file; never shown
  std::string ca_file = {};           // whom to trust; empty: the system's authorities
  std::string certificate_file = {};  // of the client, for a gnomond that asks for one
  std::string key_file = {};
  uint64_t answer_bytes_max = 256ull << 20;  // of a body; a longer one is a ConnectionError
};

// What `options` leaves open is taken from the environment: GNOMON_TOKEN_FILE, else GNOMON_TOKEN;
// GNOMON_CA_FILE; GNOMON_CERTIFICATE_FILE and GNOMON_KEY_FILE. Empty variables count as not set.
ClientOptions with_environment(ClientOptions options);

// The token as it is now, or empty. Throws ConfigError, which never has the token: key token_file
// or token.
std::string read_token(const ClientOptions& options);

// A ConfigError of an HttpClient (keys controller, token_file, ca_file, ...) as one of a command
// line: --token-file, and `url_option` for the URL. Others stay as they are.
ConfigError as_option(const ConfigError& error, const std::string& url_option);

}  // namespace gnomon
