#include "trainer/engine/resident_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "base/errors.h"

namespace gnomon {

int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t total_pages = 0;
  int64_t resident_pages = 0;
  if (!(statm >> total_pages >> resident_pages)) {
    throw SystemError("read", "/proc/self/statm", errno);
  }
  return resident_pages * ::sysconf(_SC_PAGESIZE);
}

int64_t resident_bytes_peak() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace gnomon
