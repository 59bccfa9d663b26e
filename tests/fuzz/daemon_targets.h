// What the targets of the daemon share: its HTTP server (http_target.cc) and what it reads at its
// start.
#pragma once

#include <cstdint>
#include <span>

namespace gnomon::fuzz {

// The first byte says how the rest is sent to a server of this process: in one piece or cut at a
// place that it names. The server answers or closes, gives no 500, and has room for the next one.
void run_http(std::span<const uint8_t> input);

// The first byte says what the rest is: 'f' a whole ledger file, 'w' a WAL beside a good ledger,
// 'p' changes of a good ledger (four bytes of place, one of length, one of content, again and
// again), 'c' the length to which it is cut. A start takes it or refuses with a LedgerError, and
// then leaves the file as it was.
void run_ledger(std::span<const uint8_t> input);

}  // namespace gnomon::fuzz
