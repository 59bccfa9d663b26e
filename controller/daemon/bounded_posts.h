// Writes that a timer posts, again at each look until they are done: of one subject one at a time,
// and few of all, so that a ledger that stands still finds no queue of them in front of what others
// ask for.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "storage/ledger.h"

namespace gnomon {

class BoundedPosts {
 public:
  explicit BoundedPosts(size_t most) : most_(most) {}

  // Posts the write of `subject` (a lease, a run), unless one of it is under way. False when there
  // is no room: the next look tries again. `failed` is called on the writer's thread with what went
  // wrong.
  bool post(Ledger& ledger, int64_t subject, Ledger::Write write,
            std::function<void(std::exception_ptr)> failed);

 private:
  const size_t most_;
  struct State {
    std::mutex mutex;
    std::set<int64_t> under_way;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

}  // namespace gnomon
