// Collectives over TCP, for ranks that nothing but environment variables started: every rank has a
// connection with every other.
#pragma once

#include <memory>

#include "kernels/comm/collectives.h"
#include "kernels/comm/tcp_rendezvous.h"

namespace gnomon {

// Waits for the other ranks; the destructor waits for them to come to theirs. A rank that waits for
// longer than `timeout_seconds` inside one operation, or is lost, ends the job. Throws Error
// (tcp_rendezvous.h).
std::unique_ptr<Collectives> make_tcp_collectives(const tcp::Meeting& meeting,
                                                  double timeout_seconds);

}  // namespace gnomon
