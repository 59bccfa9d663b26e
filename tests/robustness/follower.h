// Who follows /v1/events over a history, and goes on behind the last id after each cut.
#pragma once

#include <atomic>
#include <map>
#include <string>

#include "tests/robustness/endpoint.h"

namespace gnomon::robustness {

class Follower {
 public:
  explicit Follower(Scene& scene) : scene_(scene) {}

  // Until `leave` is called, by another thread.
  void run();
  void leave() { leaving_ = true; }
  // When run() has returned: what came, by id.
  const std::map<int64_t, std::string>& events() const { return events_; }
  int64_t newest() const { return last_; }

 private:
  void follow_once(int socket);
  // One event, or a comment.
  void handle_block(const std::string& block);

  Scene& scene_;
  std::atomic<bool> leaving_ = false;
  std::atomic<int64_t> last_ = 0;
  std::map<int64_t, std::string> events_;
};

}  // namespace gnomon::robustness
