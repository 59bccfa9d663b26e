// The few calls on loopback sockets that the suite needs.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "base/files.h"

namespace gnomon::robustness {

// A connection to a port of this machine; nothing valid (get() < 0) when nobody listens.
FileDescriptor connect_to(int port);
// What there is, at most 64 KiB: empty when nothing came in time; `ended` when the other side is
// gone.
std::string receive(int socket, std::chrono::milliseconds patience, bool& ended);
// False when the other side is gone.
bool send_all(int socket, std::string_view text);

}  // namespace gnomon::robustness
