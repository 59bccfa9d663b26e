#include "base/sleeping_threads.h"

#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace gnomon {

void make_waiting_threads_sleep(char** argv) {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  if (std::getenv(kPolicy) != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  // The dynamic loader was called by name: it is what /proc/self/exe names.
  if (::getauxval(AT_BASE) == 0) return;
  // By its own path the process keeps its name in lists of processes.
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  // Once: the next start finds the variable.
  if (error || ::setenv(kPolicy, "passive", 1) != 0) return;
  ::execve(path.c_str(), argv, environ);
  // The program goes on with libgomp's default.
}

}  // namespace gnomon
