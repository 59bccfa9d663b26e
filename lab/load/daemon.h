// Programs that a benchmark measures, each in a folder of its own on the disk that is to be
// measured: gnomond, and what people compare it with.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/child_process.h"
#include "protocol/client.h"
#include "protocol/tls_context.h"

namespace gnomon::bench {

// A program that listens on loopback.
class Served {
 public:
  // Starts it and waits until `port` accepts connections. Throws Error with what it printed when it
  // ends instead, or does not listen within 30 seconds.
  Served(const std::vector<std::string>& command, const std::filesystem::path& folder, int port);

  int port() const { return port_; }
  pid_t pid() const { return process_->pid(); }
  // SIGTERM, and waits; the exit status, or -signal.
  int stop();
  // Resident memory now and at its most, bytes.
  struct Memory {
    int64_t now = 0, most = 0;
  };
  Memory memory() const;
  // User and system time so far, all threads.
  double cpu_seconds() const;

 private:
  std::unique_ptr<ChildProcess> process_;
  int port_;
};

// Ports that nothing listens on now.
int free_port();

// gnomond on a ledger in `folder`, under a policy that is written there.
class BenchDaemon {
 public:
  BenchDaemon(const std::string& gnomond, const std::filesystem::path& folder,
              const std::string& policy, const std::vector<std::string>& arguments = {});
  // One that speaks TLS, with a certificate that is made in `folder` by openssl. Throws Error
  // without that program.
  static std::unique_ptr<BenchDaemon> with_tls(const std::string& gnomond,
                                               const std::filesystem::path& folder,
                                               const std::string& policy);

  Served& process() { return served_; }
  int port() const { return served_.port(); }
  HttpClient client() const;
  // For connections to it; null: plain.
  TlsContext tls() const;
  std::filesystem::path ledger() const { return ledger_; }

 private:
  std::filesystem::path ledger_;
  std::string ca_;  // empty: plain
  Served served_;
};

// The path of a program beside this one, or on PATH; empty where there is none.
std::string beside_this_program(const std::string& name);
std::string on_path(const std::string& name);

}  // namespace gnomon::bench
