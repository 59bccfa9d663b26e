// SHA-256 (FIPS 180-4): for what must not be forged. Damage alone is found by base/hash.h, faster.
#pragma once

#include <string>
#include <string_view>

namespace gnomon {

// 64 lower-case hexadecimal digits.
std::string sha256_hex(std::string_view data);

}  // namespace gnomon
