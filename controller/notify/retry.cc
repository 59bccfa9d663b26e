#include "controller/notify/retry.h"

#include <algorithm>

namespace gnomon::notify {
namespace {

Backoff backoff_of(double first_seconds, double longest_seconds) {
  const auto milliseconds = [](double seconds) {
    return Backoff::Duration(static_cast<int64_t>(seconds * 1000));
  };
  return Backoff(milliseconds(first_seconds), milliseconds(longest_seconds));
}

double seconds_of(Backoff::Duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Fate fate_of(int status) {
  if (status >= 200 && status < 300) return Fate::kDelivered;
  const bool passing = status == 0 || status == 408 || status == 425 || status == 429;
  return passing || status >= 500 ? Fate::kAgain : Fate::kRefused;
}

Pace::Pace(double first_seconds, double longest_seconds)
    : backoff_(backoff_of(first_seconds, longest_seconds)) {}

void Pace::succeeded() {
  failures_ = 0;
  backoff_.reset();
}

double Pace::failed(double retry_after) {
  ++failures_;
  return std::max(seconds_of(backoff_.next()), std::clamp(retry_after, 0.0, kRetryAfterMaxSeconds));
}

double wait_after(int64_t tries, double first_seconds, double longest_seconds) {
  Backoff backoff = backoff_of(first_seconds, longest_seconds);
  double seconds = 0;
  for (int64_t i = 0; i < std::clamp<int64_t>(tries, 1, 64); ++i) {
    seconds = seconds_of(backoff.next());
  }
  return seconds;
}

}  // namespace gnomon::notify
