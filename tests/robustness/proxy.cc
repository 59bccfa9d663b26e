#include "tests/robustness/proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <optional>

#include "base/errors.h"

namespace gnomon::robustness {
namespace {

using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(5);
constexpr auto kAnswerTime = milliseconds(2000);
constexpr size_t kLateMost = 8;

// Bytes of the message that `text` begins with; nothing while it is not whole.
std::optional<size_t> message_size(const std::string& text) {
  const size_t head = text.find("\r\n\r\n");
  if (head == std::string::npos) return std::nullopt;
  constexpr std::string_view kLength = "\r\nContent-Length: ";
  const size_t length = text.find(kLength);
  const size_t body =
      length < head ? std::stoul(text.substr(length + kLength.size(), 20)) : size_t{0};
  const size_t size = head + 4 + body;
  return text.size() < size ? std::nullopt : std::optional<size_t>(size);
}

}  // namespace

// A client's connection, the daemon's behind it, and what has come of the client's next requests.
struct Proxy::Exchange {
  FileDescriptor client;
  FileDescriptor server;
  int server_port = 0;
  std::string from_client;

  bool connect(int port) {
    if (server.get() < 0 || server_port != port) server = connect_to(port);
    server_port = port;
    return server.get() >= 0;
  }
  // A whole answer; nothing when the daemon is gone or does not answer in time.
  static std::optional<std::string> answer_of(int socket, const std::atomic<bool>& leaving) {
    std::string text;
    bool ended = false;
    const auto end = std::chrono::steady_clock::now() + kAnswerTime;
    while (!ended && !leaving && std::chrono::steady_clock::now() < end) {
      text += receive(socket, kLook, ended);
      if (message_size(text)) return text;
    }
    return std::nullopt;
  }
};

Proxy::Proxy(Record& record, uint64_t seed)
    : record_(record), seed_(seed), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_.get(), where, size) != 0 || ::listen(listener_.get(), 64) != 0 ||
      ::getsockname(listener_.get(), where, &size) != 0) {
    throw SystemError("listen at", "127.0.0.1", errno);
  }
  port_ = ntohs(address.sin_port);
  threads_.emplace_back([this] { run_repeats(); });
  threads_.emplace_back([this] { accept_all(); });
}

Proxy::~Proxy() {
  leaving_ = true;
  threads_[1].join();  // the one that adds others
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (i != 1) threads_[i].join();
  }
}

void Proxy::accept_all() {
  uint64_t number = 0;
  std::vector<std::thread> sessions;
  while (!leaving_) {
    pollfd wanted{listener_.get(), POLLIN, 0};
    if (::poll(&wanted, 1, static_cast<int>(kLook.count())) <= 0) continue;
    FileDescriptor client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (client.get() < 0) continue;
    sessions.emplace_back([this, number = ++number, client = std::move(client)]() mutable {
      serve(std::move(client), number);
    });
  }
  for (std::thread& session : sessions) session.join();
}

void Proxy::repeat(const std::string& request) const {
  const FileDescriptor server = connect_to(target_);
  if (server.get() < 0 || !send_all(server.get(), request)) return;
  Exchange::answer_of(server.get(), leaving_);
}

void Proxy::repeat_late(const std::string& request) {
  const std::lock_guard lock(mutex_);
  if (late_.size() < kLateMost) late_.push_back(request);
}

// What is repeated late comes behind requests that were sent after it.
void Proxy::run_repeats() {
  Draw draw(seed_, 4000);
  while (!leaving_) {
    std::this_thread::sleep_for(milliseconds(draw.between(1, 60)));
    std::string request;
    {
      const std::lock_guard lock(mutex_);
      if (late_.empty() || partitioned_) continue;
      request = late_.front();
      late_.pop_front();
    }
    record_.count("requests repeated late");
    repeat(request);
  }
}

// False when the connection is to be cut.
bool Proxy::pass_on(Exchange& exchange, const std::string& request, Draw& draw) {
  const bool calm = calm_;
  if (!calm && draw.chance(0.02)) {
    record_.count("requests lost");
    return false;
  }
  if (!exchange.connect(target_)) return false;
  if (!calm && draw.chance(0.02)) {
    record_.count("requests cut");
    send_all(exchange.server.get(), request.substr(0, request.size() / 2));
    exchange.server.close();
    return false;
  }
  if (!calm && draw.chance(0.05)) std::this_thread::sleep_for(milliseconds(draw.between(1, 80)));
  if (!calm && draw.chance(0.03)) {
    record_.count("requests repeated at once");
    repeat(request);
  }
  if (!calm && draw.chance(0.05)) repeat_late(request);
  if (!send_all(exchange.server.get(), request)) return false;
  const auto answer = Exchange::answer_of(exchange.server.get(), leaving_);
  if (!answer || partitioned_) return false;
  if (!calm && draw.chance(0.02)) {
    record_.count("answers lost");
    return false;
  }
  if (!calm && draw.chance(0.02)) {
    record_.count("answers cut");
    send_all(exchange.client.get(), answer->substr(0, answer->size() / 2));
    return false;
  }
  return send_all(exchange.client.get(), *answer);
}

void Proxy::serve(FileDescriptor client, uint64_t number) {
  Draw draw(seed_, 5000 + number);
  Exchange exchange;
  exchange.client = std::move(client);
  bool ended = false;
  while (!ended && !leaving_) {
    exchange.from_client += receive(exchange.client.get(), kLook, ended);
    const std::optional<size_t> size = message_size(exchange.from_client);
    if (!size) continue;
    if (partitioned_) {
      record_.count("requests in a partition");
      return;
    }
    const std::string request = exchange.from_client.substr(0, *size);
    exchange.from_client.erase(0, *size);
    if (!pass_on(exchange, request, draw)) return;
  }
}

}  // namespace gnomon::robustness
