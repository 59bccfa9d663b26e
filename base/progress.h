// Progress of long work: one line that is redrawn on a terminal, a plain line every few seconds
// elsewhere.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gnomon {

class Progress {
 public:
  // `total` in units of work (steps, bytes); 0 when unknown. Writes to `out` (usually stderr).
  Progress(std::string label, int64_t total, std::FILE* out = stderr);
  ~Progress();

  // `done` units are finished; `note` is shown behind the bar ("loss 2.31  4.1k tok/s"). Cheap:
  // draws at most ten times a second on a terminal, once in two seconds elsewhere.
  void update(int64_t done, const std::string& note = {});
  // Draws the last state and ends the line.
  void finish(const std::string& note = {});
  // Prints a line of its own above the bar.
  void message(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  void draw(bool last);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  int64_t first_done_ = -1;
  std::string note_;
  std::FILE* out_;
  bool terminal_;
  bool finished_ = false;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_draw_;
};

// "1h 02m", "3m 20s", "12s", for people.
std::string format_duration(double seconds);

}  // namespace gnomon
