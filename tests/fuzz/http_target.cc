#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "base/files.h"
#include "base/sha256.h"
#include "base/temporary_directory.h"
#include "controller/api/server.h"
#include "controller/decide/policy.h"
#include "tests/fuzz/daemon_targets.h"
#include "tests/fuzz/targets.h"

namespace gnomon::fuzz {
namespace {

constexpr int kPatienceMs = 10'000;
constexpr size_t kConnectionsMax = 8;  // so few that one which is not given back is missed

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

ServerOptions server_options() {
  ServerOptions options;
  options.connections_max = kConnectionsMax;
  return options;
}

// A daemon without its process: everything that answers requests, on a ledger of its own.
class InProcessDaemon {
 public:
  InProcessDaemon() {
    // This object ends at the program's exit, as OpenSSL does. Used first, OpenSSL ends last: its
    // end frees what each thread has there only for threads that are over.
    sha256_hex("");
    spdlog::set_level(spdlog::level::off);
    ledger_.write([this](LedgerTransaction& transaction) { leases_.restore(transaction); });
    thread_ = std::thread([this] { server_.run(services_, router_); });
  }
  ~InProcessDaemon() {
    server_.stop();
    thread_.join();
  }
  uint16_t port() const { return server_.port(); }

 private:
  TemporaryDirectory folder_;
  Metrics metrics_;
  ReplayQueue queue_;
  ChangeNotifiers notifiers_;
  RunCache runs_{metrics_, queue_, notifiers_, {decide::Policy().to_toml(), 3600, {}, nullptr},
                 seconds,  seconds};
  Leases leases_{runs_, metrics_, queue_};
  Authenticator authenticator_{{}, seconds, seconds};
  Server server_{server_options()};
  Ledger ledger_{{.file = folder_ / "ledger.sqlite", .on_commit = {}, .on_outcome = {}}};
  Backups backups_{ledger_, metrics_, {}, seconds};
  Services services_{ledger_, runs_, leases_, metrics_, queue_, notifiers_, authenticator_, ""};
  Router router_{(services_.backups = &backups_, all_routes(services_)), page_route(services_)};
  std::thread thread_;
};

FileDescriptor connect_to(uint16_t port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  require(::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0,
          "the server takes no connection");
  // Thousands of connections a second would leave no port otherwise.
  const linger now{1, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  return socket;
}

void send_all(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;  // the server has had enough
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

// Everything up to the connection's end.
std::string read_to_end(int socket) {
  std::string all;
  char buffer[65536];
  while (true) {
    pollfd wait{socket, POLLIN, 0};
    require(::poll(&wait, 1, kPatienceMs) == 1, "the server neither answers nor closes");
    const ssize_t size = ::recv(socket, buffer, sizeof buffer, 0);
    if (size <= 0) return all;
    all.append(buffer, static_cast<size_t>(size));
  }
}

std::string exchange(uint16_t port, std::string_view bytes, size_t cut) {
  const FileDescriptor socket = connect_to(port);
  send_all(socket.get(), bytes.substr(0, cut));
  if (cut < bytes.size()) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));  // two packets, not one
    send_all(socket.get(), bytes.substr(cut));
  }
  ::shutdown(socket.get(), SHUT_WR);
  return read_to_end(socket.get());
}

// Connections that just ended may still be counted.
void require_room(uint16_t port) {
  const double deadline = seconds() + kPatienceMs / 1000.0;
  while (!exchange(port, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n", SIZE_MAX)
              .starts_with("HTTP/1.1 200")) {
    require(seconds() < deadline, "a good request is not answered any more");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace

void run_http(std::span<const uint8_t> input) {
  static const auto daemon = std::make_unique<InProcessDaemon>();
  if (input.empty()) return;
  const auto text = text_of(input.subspan(1));
  const size_t cut = input[0] % 2 == 0 ? text.size() : text.size() * (input[0] / 2) / 128;
  const std::string answer = exchange(daemon->port(), text, cut);
  require(answer.empty() || answer.starts_with("HTTP/1."), "an answer that is no HTTP");
  require(answer.find("HTTP/1.1 500") == std::string::npos, "a request that the server fails on");
  require_room(daemon->port());
}

}  // namespace gnomon::fuzz
