#include "tests/robustness/proxy.h"

#include <optional>

namespace gnomon::robustness {
namespace {

using std::chrono::milliseconds;

constexpr auto kLook = milliseconds(5);
constexpr auto kAnswerTime = milliseconds(2000);
constexpr size_t kLateMost = 8;

}  // namespace

// A client's connection, the daemon's behind it, and what has come of the client's next requests.
struct Proxy::Exchange {
  FileDescriptor client;
  FileDescriptor server;
  int server_port = 0;
  std::string from_client;

  bool connect(int port) {
    if (server.get() < 0 || server_port != port) server = test::connect_to(port);
    server_port = port;
    return server.get() >= 0;
  }
  // A whole answer; nothing when the daemon is gone or does not answer in time.
  static std::optional<std::string> answer_of(int socket, const std::atomic<bool>& leaving) {
    std::string text;
    bool ended = false;
    const auto end = std::chrono::steady_clock::now() + kAnswerTime;
    while (!ended && !leaving && std::chrono::steady_clock::now() < end) {
      text += test::receive(socket, kLook, ended);
      if (test::message_size(text)) return text;
    }
    return std::nullopt;
  }
};

Proxy::Proxy(Record& record, uint64_t seed)
    : record_(record), seed_(seed), listener_(test::listen_on_loopback(port_)) {
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
    FileDescriptor client = test::accept_one(listener_.get(), kLook);
    if (client.get() < 0) continue;
    sessions.emplace_back([this, number = ++number, client = std::move(client)]() mutable {
      serve(std::move(client), number);
    });
  }
  for (std::thread& session : sessions) session.join();
}

void Proxy::repeat(const std::string& request) const {
  const FileDescriptor server = test::connect_to(target_);
  if (server.get() < 0 || !test::send_all(server.get(), request)) return;
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
    test::send_all(exchange.server.get(), request.substr(0, request.size() / 2));
    exchange.server.close();
    return false;
  }
  if (!calm && draw.chance(0.05)) std::this_thread::sleep_for(milliseconds(draw.between(1, 80)));
  if (!calm && draw.chance(0.03)) {
    record_.count("requests repeated at once");
    repeat(request);
  }
  if (!calm && draw.chance(0.05)) repeat_late(request);
  if (!test::send_all(exchange.server.get(), request)) return false;
  const auto answer = Exchange::answer_of(exchange.server.get(), leaving_);
  if (!answer || partitioned_) return false;
  if (!calm && draw.chance(0.02)) {
    record_.count("answers lost");
    return false;
  }
  if (!calm && draw.chance(0.02)) {
    record_.count("answers cut");
    test::send_all(exchange.client.get(), answer->substr(0, answer->size() / 2));
    return false;
  }
  return test::send_all(exchange.client.get(), *answer);
}

void Proxy::serve(FileDescriptor client, uint64_t number) {
  Draw draw(seed_, 5000 + number);
  Exchange exchange;
  exchange.client = std::move(client);
  bool ended = false;
  while (!ended && !leaving_) {
    exchange.from_client += test::receive(exchange.client.get(), kLook, ended);
    const std::optional<size_t> size = test::message_size(exchange.from_client);
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
