#include "tests/controller/daemon_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/files.h"

namespace gnomon {
namespace {

pid_t spawn(const std::vector<std::string>& arguments, const std::filesystem::path& log) {
  std::vector<char*> argv;
  std::string program = GNOMOND_PATH;
  argv.push_back(program.data());
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) {
    argv.push_back(argument.data());
  }
  argv.push_back(nullptr);
  std::string log_path = log.string();
  pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no daemon behind
    int out = ::open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
    ::dup2(out, 1);
    ::dup2(out, 2);
    ::execv(program.c_str(), argv.data());
    ::_exit(127);
  }
  return child;
}

std::filesystem::path temporary_folder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "gnomond-test-XXXXXX").string();
  return ::mkdtemp(pattern.data());
}

}  // namespace

bool eventually(const std::function<bool()>& condition) {
  auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) {
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return condition();
}

DaemonProcess::DaemonProcess(std::vector<std::string> arguments, const std::string& policy)
    : folder_(temporary_folder()), arguments_(std::move(arguments)) {
  if (!policy.empty()) {
    write_file_atomically(folder_ / "policy.toml", policy);
    arguments_.insert(arguments_.end(), {"--policy", (folder_ / "policy.toml").string()});
  }
}

DaemonProcess::~DaemonProcess() {
  kill();
  std::filesystem::remove_all(folder_);
}

void DaemonProcess::start() {
  std::filesystem::path port_file = folder_ / "port";
  std::filesystem::remove(port_file);
  std::vector<std::string> arguments = {"--ledger",    ledger().string(), "--listen",
                                        "127.0.0.1:0", "--port-file",     port_file.string()};
  arguments.insert(arguments.end(), arguments_.begin(), arguments_.end());
  pid_ = spawn(arguments, folder_ / "log");
  bool ended = false;
  bool open = eventually([&] {
    int status = 0;
    ended = ::waitpid(pid_, &status, WNOHANG) == pid_;
    return ended || std::filesystem::exists(port_file);
  });
  if (ended || !open) {
    pid_ = ended ? -1 : pid_;
    throw Error("gnomond did not start: " + log());
  }
  port_ = std::stoi(read_file(port_file));
}

void DaemonProcess::signal(int number) const { ::kill(pid_, number); }

void DaemonProcess::kill() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
}

int DaemonProcess::stop() {
  ::kill(pid_, SIGTERM);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string DaemonProcess::url() const { return fmt::format("http://127.0.0.1:{}", port_); }

std::string DaemonProcess::log() const { return read_file(folder_ / "log"); }

ProcessResult run_gnomond(const std::vector<std::string>& arguments) {
  std::filesystem::path folder = temporary_folder();
  pid_t child = spawn(arguments, folder / "log");
  int status = 0;
  ::waitpid(child, &status, 0);
  ProcessResult result{WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(folder / "log")};
  std::filesystem::remove_all(folder);
  return result;
}

RawConnection::RawConnection(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  timeval timeout{10, 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    throw Error("cannot connect");
  }
}

RawConnection::~RawConnection() { close(); }

void RawConnection::close() {
  if (socket_ >= 0) {
    ::close(socket_);
    socket_ = -1;
  }
}

void RawConnection::send(const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    ssize_t size = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) {
      return;  // the daemon has had enough; its answer says why
    }
    sent += static_cast<size_t>(size);
  }
}

std::string RawConnection::read_until(const std::string& text) {
  char buffer[4096];
  while (read_.find(text) == std::string::npos) {
    ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
    if (size <= 0) {
      break;
    }
    read_.append(buffer, static_cast<size_t>(size));
  }
  return read_;
}

}  // namespace gnomon
