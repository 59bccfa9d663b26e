#include "tests/robustness/isolation.h"

#include <fmt/format.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/errors.h"
#include "base/files.h"
#include "base/temporary_directory.h"

namespace gnomon::robustness {
namespace {

constexpr int64_t kRoom = 64 << 20;

void write_line(const char* file, const std::string& line) {
  std::ofstream stream(file);
  stream << line << std::flush;
  if (!stream) throw SystemError("write", file, errno);
}

// As root of a user namespace where this process may not do it as it is.
void enter_namespaces() {
  constexpr int kOwn = CLONE_NEWNS | CLONE_NEWNET;
  if (::unshare(kOwn) != 0) {
    const uid_t user = ::getuid();
    const gid_t group = ::getgid();
    if (::unshare(kOwn | CLONE_NEWUSER) != 0) throw SystemError("unshare", "namespaces", errno);
    write_line("/proc/self/setgroups", "deny");
    write_line("/proc/self/uid_map", fmt::format("{0} {0} 1", user));
    write_line("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
  }
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) {
    throw SystemError("make private the mounts below", "/", errno);
  }
  set_loopback(true);
}

// In a process that ends with it, so that half of it leaves nothing behind.
std::string tried_in_a_child() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("make", "a pipe", errno);
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t child = ::fork();
  if (child < 0) throw SystemError("fork", "the suite", errno);
  if (child == 0) {
    std::string wrong;
    try {
      enter_namespaces();
      const TemporaryDirectory folder;
      const SmallDisk disk(folder.path());
      disk.leave_free(0);
    } catch (const std::exception& error) {
      wrong = error.what();
    }
    const ssize_t said = ::write(writing.get(), wrong.data(), wrong.size());
    ::_exit(said == static_cast<ssize_t>(wrong.size()) ? 0 : 1);
  }
  writing.close();
  std::string wrong(1024, '\0');
  const ssize_t size = ::read(reading.get(), wrong.data(), wrong.size());
  wrong.resize(size > 0 ? static_cast<size_t>(size) : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  return status != 0 && wrong.empty() ? "the try ended without a word" : wrong;
}

}  // namespace

std::string isolate() {
  std::string wrong = tried_in_a_child();
  if (wrong.empty()) enter_namespaces();
  return wrong;
}

void set_loopback(bool up) {
  const FileDescriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  std::strncpy(request.ifr_name, "lo", sizeof request.ifr_name - 1);
  if (::ioctl(any.get(), SIOCGIFFLAGS, &request) != 0) throw SystemError("look at", "lo", errno);
  const int flags = up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP;
  request.ifr_flags = static_cast<short>(flags);
  if (::ioctl(any.get(), SIOCSIFFLAGS, &request) != 0) throw SystemError("set", "lo", errno);
}

SmallDisk::SmallDisk(std::filesystem::path where) : where_(std::move(where)) {
  const std::string size = fmt::format("size={}", kRoom);
  if (::mount("gnomon", where_.c_str(), "tmpfs", 0, size.c_str()) != 0) {
    throw SystemError("mount a tmpfs at", where_.string(), errno);
  }
}

SmallDisk::~SmallDisk() { ::umount2(where_.c_str(), MNT_DETACH); }

void SmallDisk::leave_free(int64_t bytes) const {
  // What is in use may grow between the look and the change: then the kernel refuses.
  for (int tries = 0; tries < 100; ++tries) {
    struct statvfs now {};
    if (::statvfs(where_.c_str(), &now) != 0) throw SystemError("look at", where_.string(), errno);
    const auto used = static_cast<int64_t>((now.f_blocks - now.f_bfree) * now.f_frsize);
    const std::string size = fmt::format("size={}", used + bytes);
    if (::mount("gnomon", where_.c_str(), "tmpfs", MS_REMOUNT, size.c_str()) == 0) return;
    if (errno != EINVAL) throw SystemError("shrink", where_.string(), errno);
  }
}

void SmallDisk::make_room() const {
  const std::string size = fmt::format("size={}", kRoom);
  if (::mount("gnomon", where_.c_str(), "tmpfs", MS_REMOUNT, size.c_str()) != 0) {
    throw SystemError("enlarge", where_.string(), errno);
  }
}

}  // namespace gnomon::robustness
