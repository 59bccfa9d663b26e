// One terminal for the progress bar of the training loop and the log lines of every thread: lines
// are printed above the bar, never through it.
#pragma once

#include <spdlog/logger.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/progress.h"

namespace gnomon {

// Thread-safe.
class Console {
 public:
  // `level` is one of spdlog's names: trace, debug, info, warning, error, critical, off. Writes to
  // stderr.
  Console(const std::string& program, const std::string& level);

  spdlog::logger& log() { return *logger_; }
  // A bar for `total` steps; a former one is ended.
  void start_progress(const std::string& label, int64_t total);
  void update(int64_t done, const std::string& note);
  void finish_progress(const std::string& note);

 private:
  class Sink;
  std::mutex mutex_;
  std::unique_ptr<Progress> progress_;
  std::shared_ptr<spdlog::logger> logger_;
};

}  // namespace gnomon
