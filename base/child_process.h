// Programs that tests and benchmarks start: what they print is kept, and none outlives its starter.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gnomon {

struct ChildOptions {
  // Standard error goes to `output` + ".errors" instead of `output`.
  bool errors_apart = false;
  // Set for the child, or taken from it, on top of the starter's own environment.
  std::vector<std::pair<std::string, std::optional<std::string>>> environment = {};
};

// Its standard input is empty. Killed when this object goes, or when the thread that started it
// ends, so that a starter that crashes leaves nothing behind.
class ChildProcess {
 public:
  // `command` begins with the program's path. What it prints is appended to `output`.
  ChildProcess(const std::vector<std::string>& command, std::filesystem::path output,
               const ChildOptions& options = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Waits for the end; kills it after `limit`. The exit status, or -signal.
  int wait(std::chrono::seconds limit = std::chrono::seconds(120));
  bool running();
  // Lets it go on if it has been stopped (SIGSTOP) since this was asked last. True if so.
  bool wake_if_stopped() const;
  std::string output() const;

 private:
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
  std::filesystem::path output_;
};

struct EndedProcess {
  int status = 0;  // as ChildProcess::wait
  std::string output;
  std::string errors;  // empty unless options.errors_apart
};
// Runs a program to its end.
EndedProcess run_to_end(const std::vector<std::string>& command, const ChildOptions& options = {});

// Looks again and again until `condition` holds. False after `limit`.
[[nodiscard]] bool eventually(const std::function<bool()>& condition,
                              std::chrono::seconds limit = std::chrono::seconds(60));

}  // namespace gnomon
