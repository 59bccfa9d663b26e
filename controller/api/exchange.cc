#include "controller/api/request.h"

namespace gnomon {
namespace {

// True when `action` was carried out; false when the ledger's queue was full. (No coroutine may
// sleep inside a catch block: what the thread knows of exceptions under way stays with the thread.)
bool carried_out(const std::function<void()>& action) {
  try {
    action();
    return true;
  } catch (const LedgerBusy&) {
    return false;
  }
}

}  // namespace

void read_patiently(Exchange& exchange, const Ledger::Read& read) {
  while (!carried_out([&] { exchange.read(read); })) {
    if (!exchange.pause()) throw LedgerBusy("the ledger's queue of reads was full to the end");
  }
}

bool poll_until(Exchange& exchange, const std::function<Awaited()>& awaited,
                Exchange::Clock::time_point deadline, const std::function<bool()>& look) {
  while (true) {
    const Awaited next = awaited();
    bool found = false;
    if (carried_out([&] { found = look(); })) {
      if (found) return true;
      if (!exchange.wait(next, deadline)) return false;
    } else if (!exchange.pause() || Exchange::Clock::now() >= deadline) {
      throw LedgerBusy("the ledger's queue was full to the end of the wait");
    }
  }
}

Exchange::Clock::time_point deadline_after(double seconds) {
  return Exchange::Clock::now() + std::chrono::duration_cast<Exchange::Clock::duration>(
                                      std::chrono::duration<double>(seconds));
}

}  // namespace gnomon
