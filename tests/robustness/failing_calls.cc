// A library that is loaded before the C library (LD_PRELOAD) and lets the daemon's writes and syncs
// of files fail as a bad disk lets them: EIO, ENOSPC, or a write that is cut short. The file that
// GNOMON_FAILING_CALLS names is shared with the test: an errno, 0 while all is well, and how many
// calls still go well before it is given.
#include "tests/robustness/failing_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

namespace {

using gnomon::robustness::FailingCalls;

FailingCalls* orders() {
  static FailingCalls* const shared = [] {
    const char* name = std::getenv("GNOMON_FAILING_CALLS");
    const int file = name == nullptr ? -1 : ::open(name, O_RDWR | O_CLOEXEC);
    void* at = file < 0 ? MAP_FAILED
                        : ::mmap(nullptr, sizeof(FailingCalls), PROT_READ | PROT_WRITE, MAP_SHARED,
                                 file, 0);
    return at == MAP_FAILED ? nullptr : static_cast<FailingCalls*>(at);
  }();
  return shared;
}

// True when this call fails, with errno set.
bool fails() {
  FailingCalls* const now = orders();
  if (now == nullptr || now->error == 0) return false;
  if (now->calls_before.fetch_sub(1) > 0) return false;
  ++now->failed;
  errno = now->error;
  return true;
}

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" {

ssize_t pwrite64(int file, const void* data, size_t size, off64_t at) {
  static auto* const real = next<ssize_t(int, const void*, size_t, off64_t)>("pwrite64");
  if (!fails()) return real(file, data, size, at);
  const int error = errno;
  if (size > 1) real(file, data, size / 2, at);  // as much as there was room for
  errno = error;
  return -1;
}

int fsync(int file) {
  static auto* const real = next<int(int)>("fsync");
  return fails() ? -1 : real(file);
}

int fdatasync(int file) {
  static auto* const real = next<int(int)>("fdatasync");
  return fails() ? -1 : real(file);
}

int ftruncate64(int file, off64_t size) {
  static auto* const real = next<int(int, off64_t)>("ftruncate64");
  return fails() ? -1 : real(file, size);
}

}  // extern "C"
