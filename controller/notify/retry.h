// What an answer to a notification means, and how long to wait after one that failed. Pure.
#pragma once

#include "protocol/backoff.h"

namespace gnomon::notify {

enum class Fate {
  kDelivered,
  kAgain,    // it may be taken later
  kRefused,  // it will never be
};

// `status` 0: there was no answer.
Fate fate_of(int status);

// A receiver's word about when to come again is heeded up to here.
inline constexpr double kRetryAfterMaxSeconds = 3600;

// How long a receiver is left alone: longer with each failure in a row, and as long as it asks for.
class Pace {
 public:
  Pace(double first_seconds, double longest_seconds);
  void succeeded();
  // `retry_after` in seconds, 0 = not said. Returns the seconds to wait.
  double failed(double retry_after);
  bool failing() const { return failures_ > 0; }
  int failures() const { return failures_; }  // in a row

 private:
  Backoff backoff_;
  int failures_ = 0;
};

// The same for one message, after so many tries that failed. Jitter makes no two alike.
double wait_after(int64_t tries, double first_seconds, double longest_seconds);

}  // namespace gnomon::notify
