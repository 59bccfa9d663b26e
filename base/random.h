// Numbers that nobody can guess, from the system's own source.
#pragma once

#include <cstdint>

namespace gnomon {

// 64 bits. Throws SystemError when the system gives none.
uint64_t random_bits();

}  // namespace gnomon
