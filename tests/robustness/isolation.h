// Namespaces of the suite's own, where that is allowed: a network whose loopback can be taken down,
// and mounts, so that a small file system can really be full.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace gnomon::robustness {

// Moves this process, and what it starts, into namespaces of their own, as root or as anybody where
// the kernel lets anybody. Before any thread is started. Why not, when it is not allowed; then
// nothing has changed.
std::string isolate();

// Both need isolate(). Of the own network: nothing passes while it is down. Throws SystemError.
void set_loopback(bool up);

// A file system in memory, mounted at `where`, an empty folder, until this object goes. Throws
// SystemError.
class SmallDisk {
 public:
  explicit SmallDisk(std::filesystem::path where);
  ~SmallDisk();
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  // Leaves so many bytes, rounded up to pages, above what is in use.
  void leave_free(int64_t bytes) const;
  void make_room() const;

 private:
  std::filesystem::path where_;
};

}  // namespace gnomon::robustness
