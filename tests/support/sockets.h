// The few calls on sockets of loopback that servers and proxies of tests need.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"

namespace gnomon::test {

// A connection to a port of this machine; nothing valid (get() < 0) when nobody listens.
FileDescriptor connect_to(int port);
// Listens on a free port of loopback. Throws SystemError.
FileDescriptor listen_on_loopback(int& port);
// The next connection; nothing valid when none came in time.
FileDescriptor accept_one(int listener, std::chrono::milliseconds patience);
// What there is, at most 64 KiB: empty when nothing came in time; `ended` when the other side is
// gone.
std::string receive(int socket, std::chrono::milliseconds patience, bool& ended);
// False when the other side is gone.
bool send_all(int socket, std::string_view text);
// True when the other side has closed, though there may still be something to read.
bool has_left(int socket);
// Bytes of the HTTP/1.1 message with Content-Length that `text` begins with; nothing while it is
// not whole.
std::optional<size_t> message_size(const std::string& text);

}  // namespace gnomon::test
