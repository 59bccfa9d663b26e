#include "kernels/comm/sockets.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>

#include "base/errors.h"

namespace gnomon::tcp {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kConnectSecondsMax = 5;

// A host that loses its power says nothing: asked after a minute of silence, given up after two.
void watch_over(int socket) {
  const int yes = 1, idle = 60, between = 10, times = 6;
  setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof(yes));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPINTVL, &between, sizeof(between));
  setsockopt(socket, IPPROTO_TCP, TCP_KEEPCNT, &times, sizeof(times));
  setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

FileDescriptor new_socket(const Endpoint& of) {
  const int socket = ::socket(of.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (socket < 0) throw SystemError("open a socket for", of.text(), errno);
  return FileDescriptor(socket);
}

// True when `events` came before the deadline.
bool wait_for(int socket, short events, Deadline deadline) {
  while (Clock::now() < deadline) {
    pollfd it{socket, events, 0};
    if (::poll(&it, 1, poll_milliseconds(deadline)) > 0) return true;
  }
  errno = ETIMEDOUT;
  return false;
}

}  // namespace

Clock::duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

Deadline seconds_from_now(double seconds) { return Clock::now() + from_seconds(seconds); }

int poll_milliseconds(Deadline deadline) {
  const double left = std::chrono::duration<double, std::milli>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp(std::ceil(left), 0.0, 1000.0));
}

int Endpoint::port() const {
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
}

void Endpoint::set_port(int port) {
  const in_port_t value = htons(static_cast<uint16_t>(port));
  if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&address)->sin_port = value;
  } else {
    reinterpret_cast<sockaddr_in6*>(&address)->sin6_port = value;
  }
}

std::string Endpoint::host() const {
  char text[NI_MAXHOST] = {};
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof(text), nullptr,
                  0, NI_NUMERICHOST) != 0) {
    return "an address without a name";
  }
  return text;
}

std::string Endpoint::text() const { return fmt::format("{} port {}", host(), port()); }

std::vector<Endpoint> resolve(const std::string& host, int port) {
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  if (status != 0) {
    throw Error(fmt::format("the host \"{}\" cannot be found: {}", host, gai_strerror(status)));
  }
  std::vector<Endpoint> all;
  for (const addrinfo* it = found; it != nullptr; it = it->ai_next) {
    if (it->ai_family != AF_INET && it->ai_family != AF_INET6) continue;
    Endpoint& endpoint = all.emplace_back();
    endpoint.length = it->ai_addrlen;
    std::copy_n(reinterpret_cast<const char*>(it->ai_addr), it->ai_addrlen,
                reinterpret_cast<char*>(&endpoint.address));
  }
  freeaddrinfo(found);
  return all;
}

Endpoint own_end(const FileDescriptor& socket) {
  Endpoint end;
  end.length = sizeof(end.address);
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&end.address), &end.length);
  return end;
}

Endpoint other_end(const FileDescriptor& socket) {
  Endpoint end;
  end.length = sizeof(end.address);
  getpeername(socket.get(), reinterpret_cast<sockaddr*>(&end.address), &end.length);
  return end;
}

FileDescriptor listen_at(const Endpoint& at, int backlog) {
  FileDescriptor socket = new_socket(at);
  const int yes = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&at.address), at.length) != 0 ||
      ::listen(socket.get(), backlog) != 0) {
    throw SystemError("listen at", at.text(), errno);
  }
  return socket;
}

std::optional<FileDescriptor> connect_to(const Endpoint& to, Deadline deadline) {
  FileDescriptor socket = new_socket(to);
  const auto* address = reinterpret_cast<const sockaddr*>(&to.address);
  if (::connect(socket.get(), address, to.length) != 0) {
    if (errno != EINPROGRESS) return std::nullopt;
    deadline = std::min(deadline, seconds_from_now(kConnectSecondsMax));
    if (!wait_for(socket.get(), POLLOUT, deadline)) return std::nullopt;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    if (error != 0) return std::nullopt;
  }
  // Where nobody listens, a socket whose own port is this very one meets itself.
  if (own_end(socket).text() == to.text()) {
    errno = ECONNREFUSED;
    return std::nullopt;
  }
  watch_over(socket.get());
  return socket;
}

std::optional<FileDescriptor> accept_from(const FileDescriptor& listener) {
  const int socket = ::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (socket < 0) return std::nullopt;
  watch_over(socket);
  return FileDescriptor(socket);
}

bool send_all(const FileDescriptor& socket, std::span<const std::byte> data, Deadline deadline) {
  while (!data.empty()) {
    const ssize_t sent = ::send(socket.get(), data.data(), data.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      data = data.subspan(static_cast<size_t>(sent));
    } else if ((errno != EINTR && errno != EAGAIN) || !wait_for(socket.get(), POLLOUT, deadline)) {
      return false;
    }
  }
  return true;
}

bool receive_all(const FileDescriptor& socket, std::span<std::byte> room, Deadline deadline) {
  while (!room.empty()) {
    const ssize_t got = ::recv(socket.get(), room.data(), room.size(), 0);
    if (got > 0) {
      room = room.subspan(static_cast<size_t>(got));
    } else if (got == 0) {
      errno = 0;
      return false;
    } else if ((errno != EINTR && errno != EAGAIN) || !wait_for(socket.get(), POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

bool is_closed(const FileDescriptor& socket) {
  pollfd it{socket.get(), POLLRDHUP, 0};
  return ::poll(&it, 1, 0) > 0 && (it.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

}  // namespace gnomon::tcp
