// A real gnomond in a process of its own, on a ledger in a folder of its own.
#pragma once

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "protocol/client.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::test {

class DaemonProcess {
 public:
  // Starts nothing yet. `arguments` go behind --ledger, --listen, --port-file and, where there is
  // one, --policy.
  explicit DaemonProcess(std::vector<std::string> arguments = {}, const std::string& policy = {});

  // Its arguments make it speak TLS: url() is one of https, and client() has these options.
  void speak_tls(const ClientOptions& access) { access_ = access; }

  // Starts the daemon on the same ledger as before and waits until it listens, at any port that is
  // free. Throws Error with its log when it ends instead.
  void start(const ChildOptions& options = {});
  // The same at the port that it had.
  void start_again();
  // SIGKILL, and waits for its end.
  void kill() { process_.reset(); }
  // SIGTERM; returns the exit status, or -signal.
  int stop();
  bool running() const { return process_ && process_->running(); }
  void signal(int number) const { process_->signal(number); }
  // Removes the ledger; the daemon must not run.
  void lose_ledger() const;

  std::string url() const;
  int port() const { return port_; }
  pid_t pid() const { return process_->pid(); }
  std::string log() const;
  // From /proc, of the one that runs.
  double resident_kib() const;
  double mapped_kib() const;
  double processor_seconds() const;
  const std::filesystem::path& folder() const { return folder_.path(); }
  std::filesystem::path ledger() const { return folder_ / "ledger.sqlite"; }
  HttpClient client() const;
  // Rows of GET /v1/runs/run-1/`what`; none while there is no such run.
  boost::json::array rows(const std::string& what) const;

 private:
  double kib_of(const std::string& name) const;
  void start_at(int port, const ChildOptions& options = {});

  TemporaryDirectory folder_;
  std::vector<std::string> arguments_;
  std::optional<ClientOptions> access_;
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0;
};

// Runs gnomond to its end; what it prints to standard error is in `output` too.
EndedProcess run_gnomond(const std::vector<std::string>& arguments);

}  // namespace gnomon::test
