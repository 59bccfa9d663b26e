// Processes whose power is cut: what they do to their files is noted, and when they are gone the
// files are replaced by what a disk might have then.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/robustness/draw.h"
#include "tests/robustness/power_disk.h"

namespace gnomon::robustness {

class PowerCuts {
 public:
  // Follows files whose absolute paths begin with one of `paths`, `journal` not among them. With
  // `lies`, the disk keeps nothing that was synced: what was acknowledged must be found missing.
  PowerCuts(std::vector<std::string> paths, std::filesystem::path journal, bool lies = false);

  // False in builds whose sanitizer must be the first library.
  static bool possible();

  // The environment of the next process, which is killed behind so many changes of its files; 0:
  // never.
  std::vector<std::pair<std::string, std::optional<std::string>>> begin(int64_t cut_after);
  // When that process has ended, however it did. What the library has not seen of it, in sentences.
  std::vector<std::string> cut(Draw& draw);
  // It was begun and not cut yet.
  bool running() const { return disk_ != nullptr; }

 private:
  std::vector<std::string> paths_;
  std::filesystem::path journal_;
  bool lies_;
  int64_t cut_after_ = 0;
  std::unique_ptr<PowerDisk> disk_;
};

// Power cuts of processes that write checkpoints, make backups and put them back, as long as there
// is time. Prints what it found; the number of cuts that something did not survive.
struct PowerOptions {
  double seconds = 10;
  uint64_t seed = 1;
  bool lies = false;
  std::string self;  // this program, which writes checkpoints when it is asked to
};
int64_t cut_checkpoints_and_backups(const PowerOptions& options);
// What the program does as a process of its own: writes checkpoints below `root` for ever, as a
// trainer does, and names each on standard output when it is complete.
int write_checkpoints(const std::string& root, uint64_t seed);

}  // namespace gnomon::robustness
