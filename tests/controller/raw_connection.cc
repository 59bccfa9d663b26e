#include "tests/controller/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/errors.h"

namespace gnomon {

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

bool RawConnection::send(const std::string& text) {
  size_t sent = 0;
  while (sent < text.size()) {
    ssize_t size = ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) {
      return false;
    }
    sent += static_cast<size_t>(size);
  }
  return true;
}

std::string RawConnection::read_until(const std::string& text) {
  char buffer[65536];
  size_t searched = 0;
  while (read_.find(text, searched) == std::string::npos) {
    // What has been searched is not searched again, but for the beginning of `text` at its end.
    searched = read_.size() - std::min(read_.size(), text.size());
    ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
    if (size <= 0) {
      break;
    }
    read_.append(buffer, static_cast<size_t>(size));
  }
  return read_;
}

void RawConnection::end_sending() { ::shutdown(socket_, SHUT_WR); }

bool RawConnection::ended_within(std::chrono::milliseconds time) {
  const auto deadline = std::chrono::steady_clock::now() + time;
  char buffer[4096];
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline - std::chrono::steady_clock::now());
    pollfd wait{socket_, POLLIN, 0};
    if (::poll(&wait, 1, static_cast<int>(std::max<int64_t>(left.count(), 0))) != 1) return false;
    const ssize_t size = ::recv(socket_, buffer, sizeof buffer, 0);
    if (size <= 0) return true;
    read_.append(buffer, static_cast<size_t>(size));
  }
}

}  // namespace gnomon
