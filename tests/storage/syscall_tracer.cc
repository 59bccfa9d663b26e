#include "tests/storage/syscall_tracer.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace gnomon {
namespace {

bool is_counted(long call) {
  constexpr std::array<long, 17> kCalls = {
      SYS_open,   SYS_openat,   SYS_write,     SYS_pwrite64,  SYS_writev,   SYS_fsync,
      SYS_rename, SYS_renameat, SYS_renameat2, SYS_mkdir,     SYS_mkdirat,  SYS_unlink,
      SYS_rmdir,  SYS_unlinkat, SYS_fallocate, SYS_ftruncate, SYS_fdatasync};
  return std::find(kCalls.begin(), kCalls.end(), call) != kCalls.end();
}

class Tracer {
 public:
  explicit Tracer(pid_t child) : child_(child) {}

  TracedRun run(Strike strike, size_t at, int error, const std::function<void()>& meanwhile) {
    wait();
    ::ptrace(PTRACE_SETOPTIONS, child_, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    while (next_call()) {
      user_regs_struct registers = read_registers();
      auto call = static_cast<long>(registers.orig_rax);
      bool struck = false;
      if (is_counted(call)) {
        struck = result_.calls.size() == at;
        result_.calls.push_back(call);
      }
      if (struck && meanwhile) meanwhile();
      if (struck && strike == Strike::kKill) ::kill(child_, SIGKILL);
      if (struck && strike == Strike::kFail) {
        registers.orig_rax = static_cast<unsigned long long>(-1);
        ::ptrace(PTRACE_SETREGS, child_, nullptr, &registers);
      }
      if (!next_call()) break;  // the call's end
      if (struck && strike == Strike::kFail) {
        registers = read_registers();
        registers.rax = static_cast<unsigned long long>(-error);
        ::ptrace(PTRACE_SETREGS, child_, nullptr, &registers);
      }
    }
    result_.killed = WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL;
    if (WIFEXITED(status_)) result_.exit_status = WEXITSTATUS(status_);
    return result_;
  }

 private:
  void wait() { ASSERT_EQ(::waitpid(child_, &status_, 0), child_); }
  // Lets the child go on to the next begin or end of a system call. False when it is gone.
  bool next_call() {
    int signal = 0;
    while (true) {
      ::ptrace(PTRACE_SYSCALL, child_, nullptr, signal);
      wait();
      if (!WIFSTOPPED(status_)) return false;
      if (WSTOPSIG(status_) == (SIGTRAP | 0x80)) return true;
      signal = WSTOPSIG(status_);
    }
  }
  user_regs_struct read_registers() const {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, child_, nullptr, &registers);
    return registers;
  }

  pid_t child_;
  int status_ = 0;
  TracedRun result_;
};

}  // namespace

TracedRun run_traced(const std::function<int()>& work, Strike strike, size_t at, int error,
                     const std::function<void()>& meanwhile) {
  pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(125);
    ::raise(SIGSTOP);
    ::_exit(work());
  }
  return Tracer(child).run(strike, at, error, meanwhile);
}

}  // namespace gnomon
