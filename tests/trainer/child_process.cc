#include "tests/trainer/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon::testing {

using Clock = std::chrono::steady_clock;

ChildProcess::ChildProcess(const std::vector<std::string>& command, std::filesystem::path output)
    : output_(std::move(output)) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const FileDescriptor file = FileDescriptor::open(output_, O_WRONLY | O_CREAT | O_APPEND);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(file.get(), STDOUT_FILENO);
    ::dup2(file.get(), STDERR_FILENO);
    ::execv(arguments[0], arguments.data());
    ::_exit(127);
  }
  GNOMON_ASSERT(pid_ > 0);
}

ChildProcess::~ChildProcess() {
  if (!ended_) {
    signal(SIGKILL);
    wait();
  }
}

void ChildProcess::signal(int number) { ::kill(pid_, number); }

bool ChildProcess::running() {
  if (ended_) return false;
  ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return !ended_;
}

int ChildProcess::wait(std::chrono::seconds limit) {
  if (!eventually([this] { return !running(); }, limit)) {
    signal(SIGKILL);
    ::waitpid(pid_, &status_, 0);
    ended_ = true;
  }
  return WIFEXITED(status_) ? WEXITSTATUS(status_) : -WTERMSIG(status_);
}

std::string ChildProcess::output() const { return read_file(output_); }

bool eventually(const std::function<bool()>& condition, std::chrono::seconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

TemporaryDirectory::TemporaryDirectory() {
  std::string name = (std::filesystem::temp_directory_path() / "gnomon-test-XXXXXX").string();
  GNOMON_ASSERT(::mkdtemp(name.data()) != nullptr);
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace gnomon::testing
