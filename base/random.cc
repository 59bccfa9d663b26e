#include "base/random.h"

#include <sys/random.h>

#include <cerrno>

#include "base/errors.h"

namespace gnomon {

uint64_t random_bits() {
  uint64_t bits = 0;
  // So few bytes come whole, or not at all because of a signal.
  while (::getrandom(&bits, sizeof bits, 0) != static_cast<ssize_t>(sizeof bits)) {
    if (errno != EINTR) throw SystemError("get random numbers from", "the system", errno);
  }
  return bits;
}

}  // namespace gnomon
