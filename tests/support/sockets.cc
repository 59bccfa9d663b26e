#include "tests/support/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include "base/errors.h"

namespace gnomon::test {

FileDescriptor connect_to(int port) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return FileDescriptor();
  }
  const int on = 1;
  ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

FileDescriptor listen_on_loopback(int& port) {
  FileDescriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const where = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener.get(), where, size) != 0 || ::listen(listener.get(), 64) != 0 ||
      ::getsockname(listener.get(), where, &size) != 0) {
    throw SystemError("listen at", "127.0.0.1", errno);
  }
  port = ntohs(address.sin_port);
  return listener;
}

FileDescriptor accept_one(int listener, std::chrono::milliseconds patience) {
  pollfd wanted{listener, POLLIN, 0};
  if (::poll(&wanted, 1, static_cast<int>(patience.count())) <= 0) return FileDescriptor();
  return FileDescriptor(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
}

std::string receive(int socket, std::chrono::milliseconds patience, bool& ended) {
  pollfd wanted{socket, POLLIN, 0};
  if (::poll(&wanted, 1, static_cast<int>(patience.count())) <= 0) return {};
  std::array<char, 65536> buffer;
  const ssize_t size = ::recv(socket, buffer.data(), buffer.size(), 0);
  ended = size <= 0;
  return ended ? std::string() : std::string(buffer.data(), static_cast<size_t>(size));
}

bool send_all(int socket, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = ::send(socket, text.data(), text.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    text.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool has_left(int socket) {
  pollfd wanted{socket, POLLRDHUP, 0};
  return ::poll(&wanted, 1, 0) > 0 && (wanted.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

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

}  // namespace gnomon::test
