#include "lab/load/daemon.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/errors.h"
#include "base/files.h"
#include "lab/load/wire.h"

namespace gnomon::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kStartMax{30};

sockaddr_in loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

bool listens(int port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = loopback(port);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

std::vector<std::string> daemon_command(const std::string& gnomond, const fs::path& folder,
                                        const fs::path& ledger, const std::string& policy, int port,
                                        const std::vector<std::string>& arguments) {
  const fs::path file = folder / "policy.toml";
  write_file_atomically(file, policy);
  std::vector<std::string> command = {
      gnomond,       "--ledger", ledger.string(), "--listen",   fmt::format("127.0.0.1:{}", port),
      "--log-level", "warn",     "--policy",      file.string()};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace

Served::Served(const std::vector<std::string>& command, const fs::path& folder, int port)
    : process_(std::make_unique<ChildProcess>(command, folder / "log")), port_(port) {
  const bool there = eventually([&] { return !process_->running() || listens(port_); }, kStartMax);
  if (!there || !process_->running()) {
    throw Error(fmt::format("{} did not start: {}", command.front(), process_->output()));
  }
}

int Served::stop() {
  process_->signal(SIGTERM);
  return process_->wait();
}

Served::Memory Served::memory() const {
  std::ifstream status(fmt::format("/proc/{}/status", pid()));
  Memory memory;
  for (std::string line; std::getline(status, line);) {
    std::istringstream words(line);
    std::string key;
    int64_t kilobytes = 0;
    words >> key >> kilobytes;
    if (key == "VmRSS:") memory.now = kilobytes << 10;
    if (key == "VmHWM:") memory.most = kilobytes << 10;
  }
  return memory;
}

double Served::cpu_seconds() const {
  std::ifstream stat(fmt::format("/proc/{}/stat", pid()));
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  std::istringstream words(text.substr(text.rfind(')') + 2));
  std::string skipped;
  for (int i = 0; i < 11; ++i) words >> skipped;
  double user = 0, system = 0;
  words >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

int free_port() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof address;
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw SystemError("bind", "127.0.0.1:0", errno);
  }
  return ntohs(address.sin_port);
}

BenchDaemon::BenchDaemon(const std::string& gnomond, const fs::path& folder,
                         const std::string& policy, const std::vector<std::string>& arguments)
    : ledger_(folder / "ledger.sqlite"), served_([&]() -> Served {
        const int port = free_port();
        return {daemon_command(gnomond, folder, ledger_, policy, port, arguments), folder, port};
      }()) {}

std::unique_ptr<BenchDaemon> BenchDaemon::with_tls(const std::string& gnomond,
                                                   const fs::path& folder,
                                                   const std::string& policy) {
  const std::string certificate = folder / "server.pem", key = folder / "server.key";
  const EndedProcess openssl =
      run_to_end({on_path("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt",
                  "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=bench",
                  "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate});
  if (openssl.status != 0) throw Error("openssl made no certificate: " + openssl.output);
  const fs::path config = folder / "gnomond.toml";
  write_file_atomically(config, "[tls]\ncertificate = \"server.pem\"\nkey = \"server.key\"\n");
  auto daemon = std::make_unique<BenchDaemon>(
      gnomond, folder, policy, std::vector<std::string>{"--config", config.string()});
  daemon->ca_ = certificate;
  return daemon;
}

HttpClient BenchDaemon::client() const {
  return HttpClient(
      {.url = fmt::format("{}://127.0.0.1:{}", ca_.empty() ? "http" : "https", port()),
       .ca_file = ca_});
}

TlsContext BenchDaemon::tls() const { return ca_.empty() ? nullptr : trusting(ca_); }

std::string beside_this_program(const std::string& name) {
  const fs::path file = fs::read_symlink("/proc/self/exe").parent_path() / name;
  return fs::exists(file) ? file.string() : std::string();
}

std::string on_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const fs::path file = fs::path(folder) / name;
    if (::access(file.c_str(), X_OK) == 0) return file.string();
  }
  return {};
}

}  // namespace gnomon::bench
