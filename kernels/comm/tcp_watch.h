// Ends all ranks of a job when one is lost or cannot go on. Rank 0 says that the job ends, unless
// it is the one that is lost. A rank that fails says why itself, and every other one why it ends
// with it. A thread watches the connection of every rank with rank 0, so that a rank that computes
// ends too.
#pragma once

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/files.h"

namespace gnomon::tcp {

class Watch {
 public:
  // `control` as Connections has it; `data` is only asked whether its ends are closed, and must
  // outlive this.
  Watch(int rank, int size, std::vector<FileDescriptor> control,
        const std::vector<FileDescriptor>& data);
  ~Watch() { stop(); }

  // From now on connections may be closed. end() still works.
  void stop();
  // Ends the job for this reason, from any thread; as the failure of this very rank, or not.
  [[noreturn]] void end(const std::string& why, bool fails = false);
  // Another rank's connection broke: leaves the rest to the thread, and ends the job for this
  // reason where it does not for a while.
  [[noreturn]] void lost(const std::string& why);

 private:
  void watch();
  void receive_notice(size_t from);
  void send_text(const FileDescriptor& socket, const std::string& text) const;
  [[noreturn]] void announce_and_end(const std::string& why, bool fails = false);
  [[noreturn]] void follow_rank_0(const std::string& why);
  [[noreturn]] void end_in_silence() const;
  bool one_below_has_ended() const;

  int rank_, size_;
  std::vector<FileDescriptor> control_;
  const std::vector<FileDescriptor>& data_;
  FileDescriptor wake_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace gnomon::tcp
