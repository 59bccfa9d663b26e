// A program started by a test: its stderr and stdout are kept, it is killed when the test forgets
// it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace gnomon::testing {

class ChildProcess {
 public:
  // `output` receives stdout and stderr.
  ChildProcess(const std::vector<std::string>& command, std::filesystem::path output);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number);
  // Waits for the end; kills it after `limit`. The exit status, or -signal.
  int wait(std::chrono::seconds limit = std::chrono::seconds(120));
  bool running();
  std::string output() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  std::filesystem::path output_;
};

// Polls until `condition` holds. False after `limit`.
bool eventually(const std::function<bool()>& condition,
                std::chrono::seconds limit = std::chrono::seconds(60));

// A directory under the system's temporary one that is removed at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory();
  ~TemporaryDirectory();
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

}  // namespace gnomon::testing
