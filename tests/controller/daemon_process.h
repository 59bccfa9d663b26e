// A real gnomond in a process of its own, on a ledger in a folder of its own.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "protocol/client.h"

namespace gnomon {

class DaemonProcess {
 public:
  // Starts nothing yet. `arguments` go behind --ledger, --listen, --port-file and, where there is
  // one, --policy.
  explicit DaemonProcess(std::vector<std::string> arguments = {}, const std::string& policy = {});
  ~DaemonProcess();

  // Starts the daemon on the same ledger as before and waits until it listens. Throws Error with
  // its log when it ends instead.
  void start();
  // SIGKILL, and waits for its end.
  void kill();
  // SIGTERM; returns the exit status (-1 when it did not exit by itself).
  int stop();
  void signal(int number) const;

  std::string url() const;
  int port() const { return port_; }
  pid_t pid() const { return pid_; }
  std::string log() const;
  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path ledger() const { return folder_ / "ledger.sqlite"; }
  HttpClient client() const { return HttpClient(url()); }

 private:
  std::filesystem::path folder_;
  std::vector<std::string> arguments_;
  pid_t pid_ = -1;
  int port_ = 0;
};

struct ProcessResult {
  int status = -1;
  std::string output;  // stdout and stderr
};
// Runs gnomond to its end.
ProcessResult run_gnomond(const std::vector<std::string>& arguments);

// Looks again and again until `condition` holds; false after ten seconds.
bool eventually(const std::function<bool()>& condition);

// A connection on which a test says exactly what it wants.
class RawConnection {
 public:
  explicit RawConnection(int port);
  ~RawConnection();
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;
  void send(const std::string& text);
  // Reads until `text` has come or the connection ends; returns everything read so far.
  std::string read_until(const std::string& text);
  void close();

 private:
  int socket_ = -1;
  std::string read_;
};

}  // namespace gnomon
