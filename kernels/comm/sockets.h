// TCP connections between the ranks of a job: the few calls that rendezvous and transport are made
// of. Hosts of one byte order.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace gnomon::tcp {

using Deadline = std::chrono::steady_clock::time_point;
std::chrono::steady_clock::duration from_seconds(double seconds);
Deadline seconds_from_now(double seconds);
// For poll(2): at least 0, at most a second, so that who waits looks around.
int poll_milliseconds(Deadline deadline);

struct Endpoint {
  sockaddr_storage address = {};
  socklen_t length = 0;

  int port() const;
  void set_port(int port);
  std::string host() const;  // in numbers
  std::string text() const;  // "10.0.0.1 port 29500"
};

// What `host`, a name or an address, stands for. Throws Error saying what the resolver says.
std::vector<Endpoint> resolve(const std::string& host, int port);
Endpoint own_end(const FileDescriptor& socket);
Endpoint other_end(const FileDescriptor& socket);

// Listens at this address and no other; port 0 is any. Throws SystemError.
FileDescriptor listen_at(const Endpoint& at, int backlog);
// Nothing when it is refused or not there within a few seconds; errno says why.
std::optional<FileDescriptor> connect_to(const Endpoint& to, Deadline deadline);
// A connection that waits; nothing when none does.
std::optional<FileDescriptor> accept_from(const FileDescriptor& listener);

// All of it by the deadline, or false: the other side is gone or silent, and errno says why (0 for
// a connection that was closed).
bool send_all(const FileDescriptor& socket, std::span<const std::byte> data, Deadline deadline);
bool receive_all(const FileDescriptor& socket, std::span<std::byte> room, Deadline deadline);
// True when the other side has closed it.
bool is_closed(const FileDescriptor& socket);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <class T>
std::span<std::byte> room_of(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace gnomon::tcp
