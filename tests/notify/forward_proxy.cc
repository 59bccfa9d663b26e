#include "tests/notify/forward_proxy.h"

namespace gnomon::test {
namespace {

constexpr auto kLook = std::chrono::milliseconds(5);

// The port of "CONNECT HOST:PORT ..." or "POST http://HOST:PORT/...".
int port_of(const std::string& head) {
  const size_t scheme = head.find("://");
  const size_t host = scheme < head.find('\n') ? scheme + 3 : head.find(' ') + 1;
  return std::stoi(head.substr(head.find(':', host) + 1));
}

}  // namespace

ForwardProxy::ForwardProxy(bool willing)
    : willing_(willing), listener_(listen_on_loopback(port_)), thread_([this] { accept_all(); }) {}

ForwardProxy::~ForwardProxy() {
  leaving_ = true;
  thread_.join();
}

std::vector<std::string> ForwardProxy::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

void ForwardProxy::accept_all() {
  std::vector<std::thread> sessions;
  while (!leaving_) {
    FileDescriptor client = accept_one(listener_.get(), kLook);
    if (!client) continue;
    sessions.emplace_back([this, client = std::move(client)] { serve(client); });
  }
  for (std::thread& session : sessions) session.join();
}

void ForwardProxy::serve(const FileDescriptor& client) {
  std::string text;
  bool ended = false;
  while (!ended && !leaving_ && text.find("\r\n\r\n") == std::string::npos) {
    text += receive(client.get(), kLook, ended);
  }
  const size_t head = text.find("\r\n\r\n");
  if (head == std::string::npos) return;
  {
    const std::lock_guard lock(mutex_);
    asked_.push_back(text.substr(0, head));
  }
  const FileDescriptor server = willing_ ? connect_to(port_of(text)) : FileDescriptor();
  if (!server) {
    send_all(client.get(), "HTTP/1.1 403 Not here\r\nContent-Length: 0\r\n\r\n");
    return;
  }
  if (text.starts_with("CONNECT ")) {
    send_all(client.get(), "HTTP/1.1 200 Connected\r\n\r\n");
    text.erase(0, head + 4);
  }
  if (send_all(server.get(), text)) pass_on(client, server);
}

void ForwardProxy::pass_on(const FileDescriptor& client, const FileDescriptor& server) const {
  bool ended = false;
  while (!ended && !leaving_) {
    if (!send_all(server.get(), receive(client.get(), kLook, ended)) || ended) return;
    if (!send_all(client.get(), receive(server.get(), kLook, ended))) return;
  }
}

}  // namespace gnomon::test
