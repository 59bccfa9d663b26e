#include "controller/daemon/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/errors.h"

namespace gnomon {

void reserve_descriptors(int64_t connections, const std::string& file) {
  const auto needed = static_cast<rlim_t>(connections + kDescriptorsBesides);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max >= needed) {
    limit.rlim_cur = needed;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  const int64_t possible =
      std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_max) - kDescriptorsBesides);
  throw ConfigError(
      file, 0, "limits.connections", fmt::format("{}", connections),
      fmt::format(
          "at most {} connections: this process may have {} open files (raise ulimit -Hn, or "
          "LimitNOFILE in the unit, to {} for as many as this)",
          possible, limit.rlim_max, needed));
}

}  // namespace gnomon
