#include "base/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "base/errors.h"
#include "base/files.h"
#include "base/temporary_directory.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

std::filesystem::path errors_beside(const std::filesystem::path& output) {
  return output.string() + ".errors";
}

std::vector<std::string> environment_of(const ChildOptions& options) {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  for (const auto& [name, value] : options.environment) {
    const std::string start = name + "=";
    std::erase_if(entries, [&](const std::string& it) { return it.starts_with(start); });
    if (value) entries.push_back(start + *value);
  }
  return entries;
}

// As execve() wants them; they point into `words`.
std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> all;
  all.reserve(words.size() + 1);
  for (std::string& word : words) all.push_back(word.data());
  all.push_back(nullptr);
  return all;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, std::filesystem::path output,
                           const ChildOptions& options)
    : output_(std::move(output)) {
  std::vector<std::string> words = command, entries = environment_of(options);
  const std::vector<char*> arguments = pointers(words), environment = pointers(entries);
  const FileDescriptor nothing = FileDescriptor::open("/dev/null", O_RDONLY);
  const FileDescriptor out = FileDescriptor::open(output_, O_WRONLY | O_CREAT | O_APPEND);
  const FileDescriptor errors = FileDescriptor::open(
      options.errors_apart ? errors_beside(output_) : output_, O_WRONLY | O_CREAT | O_APPEND);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(nothing.get(), STDIN_FILENO);
    ::dup2(out.get(), STDOUT_FILENO);
    ::dup2(errors.get(), STDERR_FILENO);
    ::execve(arguments[0], arguments.data(), environment.data());
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

void ChildProcess::signal(int number) const { ::kill(pid_, number); }

bool ChildProcess::running() {
  if (ended_) return false;
  ended_ = ::waitpid(pid_, &status_, WNOHANG) == pid_;
  return !ended_;
}

bool ChildProcess::wake_if_stopped() const {
  siginfo_t found{};
  const bool stopped =
      ::waitid(P_PID, pid_, &found, WSTOPPED | WNOHANG) == 0 && found.si_pid == pid_;
  if (stopped) signal(SIGCONT);
  return stopped;
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

EndedProcess run_to_end(const std::vector<std::string>& command, const ChildOptions& options) {
  const TemporaryDirectory directory;
  const std::filesystem::path output = directory / "output";
  EndedProcess ended;
  ended.status = ChildProcess(command, output, options).wait();
  ended.output = read_file(output);
  if (options.errors_apart) ended.errors = read_file(errors_beside(output));
  return ended;
}

bool eventually(const std::function<bool()>& condition, std::chrono::seconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!condition()) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace gnomon
