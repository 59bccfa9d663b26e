#include "tests/robustness/sockets.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>

namespace gnomon::robustness {

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

}  // namespace gnomon::robustness
