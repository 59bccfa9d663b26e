// The newest rows of the stream in memory, as they are sent, so that however many listen, a new row
// is not read from the ledger by each of them. Bounded; who is further behind reads the ledger.
// Thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace gnomon {

// A row as server-sent event; of which run, to leave out the others.
struct StreamEvent {
  int64_t id = 0;
  int64_t run = 0;
  std::string text;  // "id: …\nevent: …\ndata: …\n\n"
};
using StreamEventPtr = std::shared_ptr<const StreamEvent>;

StreamEventPtr make_stream_event(int64_t id, int64_t run, const std::string& type,
                                 const std::string& body);

class StreamTail {
 public:
  explicit StreamTail(size_t rows_max = 1024, size_t bytes_max = 4 << 20)
      : rows_max_(rows_max), bytes_max_(bytes_max) {}

  // After COMMIT, in the order of ids.
  void push(StreamEventPtr event);
  // Rows after `id`, at most `limit`. Nothing when it does not know them all: read the ledger.
  std::optional<std::vector<StreamEventPtr>> after(int64_t id, size_t limit) const;

 private:
  size_t rows_max_;
  size_t bytes_max_;
  mutable std::mutex mutex_;
  std::deque<StreamEventPtr> events_;
  size_t bytes_ = 0;
};

}  // namespace gnomon
