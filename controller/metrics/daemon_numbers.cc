#include "controller/metrics/daemon_numbers.h"

#include <algorithm>

namespace gnomon {

void count_request(DaemonNumbers& numbers, const std::string& route, int status, double seconds,
                   bool timed) {
  const std::string code = std::string(1, static_cast<char>('0' + status / 100)) + "xx";
  numbers.requests[{code, route}] += 1;
  if (timed)
    numbers.request_seconds.try_emplace(route, kLatencyBounds).first->second.observe(seconds);
}

void keep_receivers(DaemonNumbers& numbers, const std::vector<std::string>& names) {
  std::erase_if(numbers.receivers, [&](const auto& entry) {
    return std::ranges::find(names, entry.first) == names.end();
  });
  for (const std::string& name : names) numbers.receivers.try_emplace(name);
}

void count_messages(DaemonNumbers& numbers, const std::string& receiver, const char* outcome,
                    int64_t count) {
  const auto found = numbers.receivers.find(receiver);
  if (found != numbers.receivers.end()) {
    found->second.messages[outcome] += static_cast<double>(count);
  }
}

}  // namespace gnomon
