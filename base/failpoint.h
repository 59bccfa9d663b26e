// Moments at which a test lets a process die, stop, wait or fail: the robustness suite
// (docs/robustness.md) proves with them that a crash at the worst moment loses nothing. Inert
// unless the environment variable GNOMON_FAILPOINTS names some; then
//
//   GNOMON_FAILPOINTS="before_commit=kill@17;wal_checkpoint=stop@3;before_answer=delay:20"
//
// does the action at the 17th and the 3rd time that such a moment comes, and without @N each time.
// kill is SIGKILL, stop SIGSTOP, delay:MS a pause, error an Error thrown where that is possible.
// wall_clock=offset:FILE adds the number of seconds in FILE, read anew each time, to the wall
// clock.
#pragma once

#include <atomic>
#include <string>
#include <vector>

namespace gnomon::failpoint {

enum class Point {
  kBeforeCommit,     // of the ledger's writer; may fail
  kAfterCommit,      // before anybody is notified
  kBeforeAnswer,     // to a request that was carried out
  kWalCheckpoint,    // of the ledger's writer
  kMigration,        // inside the transaction that brings a ledger to this version; may fail
  kBackupCopy,       // of a copy whose pages are all there; may fail
  kBackupRename,     // of a copy that is whole and on disk; may fail
  kStateSaved,       // a decision state was written, not committed; may fail
  kNotifyDelivered,  // a receiver has the message, the ledger does not know it yet
};

// Reads GNOMON_FAILPOINTS. What was set there, for the log; empty when nothing was. To be called
// before any thread is started. Throws ConfigError.
std::string set_from_environment();
// The same of such a text; an empty one makes all inert.
void set(const std::string& text);

// Seconds that the wall clock is said to be wrong by; 0 unless wall_clock is set.
double wall_clock_offset();

namespace internal {
extern std::atomic<bool> any;
void act(Point point);
}  // namespace internal

// Throws Error for the action `error`.
inline void reached(Point point) {
  if (internal::any.load(std::memory_order_relaxed)) internal::act(point);
}

}  // namespace gnomon::failpoint
