#include "controller/supervisor/stream_tail.h"

#include <fmt/format.h>

#include <algorithm>

namespace gnomon {

StreamEventPtr make_stream_event(int64_t id, int64_t run, const std::string& type,
                                 const std::string& body) {
  return std::make_shared<const StreamEvent>(
      StreamEvent{id, run, fmt::format("id: {}\nevent: {}\ndata: {}\n\n", id, type, body)});
}

void StreamTail::push(StreamEventPtr event) {
  std::lock_guard lock(mutex_);
  if (!events_.empty() && event->id != events_.back()->id + 1) {
    events_.clear();  // what is between is not here
    bytes_ = 0;
  }
  bytes_ += event->text.size();
  events_.push_back(std::move(event));
  while (events_.size() > rows_max_ || (bytes_ > bytes_max_ && events_.size() > 1)) {
    bytes_ -= events_.front()->text.size();
    events_.pop_front();
  }
}

std::optional<std::vector<StreamEventPtr>> StreamTail::after(int64_t id, size_t limit) const {
  std::lock_guard lock(mutex_);
  if (events_.empty() || id + 1 < events_.front()->id) return std::nullopt;
  // Ids have no gaps.
  const auto skipped = static_cast<size_t>(id + 1 - events_.front()->id);
  std::vector<StreamEventPtr> rows;
  for (size_t i = skipped; i < std::min(events_.size(), skipped + limit); ++i) {
    rows.push_back(events_[i]);
  }
  return rows;
}

}  // namespace gnomon
