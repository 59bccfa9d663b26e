#include "base/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "base/errors.h"

namespace gnomon {

std::string sha256_hex(std::string_view data) {
  std::array<unsigned char, 32> digest{};
  unsigned size = 0;
  const int done =
      EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr);
  GNOMON_ASSERT(done == 1 && size == digest.size());
  std::string hex;
  for (unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

}  // namespace gnomon
