// What the log says of writes to the ledger that fail (a full disk, say): that it began, that it
// goes on, that it is over. Pure.
#pragma once

#include <cstdint>
#include <string>

namespace gnomon {

class WriteTrouble {
 public:
  struct Line {
    std::string text;  // empty: nothing is said
    bool well = false;
  };
  // After each group of writes: why it could not be written, or nothing. `now` in steady clock
  // seconds.
  Line outcome(const std::string& why, double now);

 private:
  int64_t failed_ = 0;  // groups since the trouble began; 0: there is none
  double since_ = 0;
  double logged_at_ = 0;
};

}  // namespace gnomon
