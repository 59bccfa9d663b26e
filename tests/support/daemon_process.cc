#include "tests/support/daemon_process.h"

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon::test {

DaemonProcess::DaemonProcess(std::vector<std::string> arguments, const std::string& policy)
    : arguments_(std::move(arguments)) {
  if (!policy.empty()) {
    write_file_atomically(folder_ / "policy.toml", policy);
    arguments_.insert(arguments_.end(), {"--policy", (folder_ / "policy.toml").string()});
  }
}

void DaemonProcess::start(const ChildOptions& options) { start_at(0, options); }

void DaemonProcess::start_again() { start_at(port_); }

void DaemonProcess::start_at(int port, const ChildOptions& options) {
  const std::filesystem::path port_file = folder_ / "port";
  std::filesystem::remove(port_file);
  std::vector<std::string> command = {GNOMOND,
                                      "--ledger",
                                      ledger().string(),
                                      "--listen",
                                      fmt::format("127.0.0.1:{}", port),
                                      "--port-file",
                                      port_file.string()};
  command.insert(command.end(), arguments_.begin(), arguments_.end());
  process_.reset();
  process_ = std::make_unique<ChildProcess>(command, folder_ / "log", options);
  static_cast<void>(eventually([&] {  // whichever it was is looked at below
    process_->wake_if_stopped();      // by a failpoint that it came to before it listens
    return std::filesystem::exists(port_file) || !process_->running();
  }));
  if (!process_->running() || !std::filesystem::exists(port_file)) {
    throw Error("gnomond did not start: " + log());
  }
  port_ = std::stoi(read_file(port_file));
}

int DaemonProcess::stop() {
  signal(SIGTERM);
  return process_->wait();
}

void DaemonProcess::lose_ledger() const {
  for (const char* suffix : {"", "-wal", "-shm"}) {
    std::filesystem::remove(ledger().string() + suffix);
  }
}

std::string DaemonProcess::url() const {
  return fmt::format("{}://127.0.0.1:{}", access_ ? "https" : "http", port_);
}

HttpClient DaemonProcess::client() const {
  ClientOptions options = access_.value_or(ClientOptions());
  options.url = url();
  return HttpClient(options);
}

double DaemonProcess::resident_kib() const { return kib_of("VmRSS:"); }

double DaemonProcess::mapped_kib() const { return kib_of("VmSize:"); }

double DaemonProcess::kib_of(const std::string& name) const {
  std::ifstream status(fmt::format("/proc/{}/status", pid()));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name)) return std::stod(line.substr(name.size()));
  }
  return 0;
}

double DaemonProcess::processor_seconds() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid()));
  std::string text;
  std::getline(file, text);
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) rest >> skipped;
  double user = 0, system = 0;
  rest >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

std::string DaemonProcess::log() const { return read_file(folder_ / "log"); }

boost::json::array DaemonProcess::rows(const std::string& what) const {
  const HttpResponse response = client().request("GET", "/v1/runs/run-1/" + what);
  return response.status == 200 ? boost::json::parse(response.body).as_array()
                                : boost::json::array();
}

EndedProcess run_gnomond(const std::vector<std::string>& arguments) {
  std::vector<std::string> command = {GNOMOND};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run_to_end(command);
}

}  // namespace gnomon::test
