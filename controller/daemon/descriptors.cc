#include "controller/daemon/descriptors.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "base/errors.h"

namespace gnomon {

std::string connections_that_fit(uint64_t files, uint64_t needed) {
  const std::string raise = fmt::format(
      "raise ulimit -Hn, or LimitNOFILE in the unit, to {} for as many as this", needed);
  if (files <= kDescriptorsBesides) {
    return fmt::format(
        "more open files: this process may have {}, and {} are needed besides those of "
        "connections ({})",
        files, kDescriptorsBesides, raise);
  }
  return fmt::format("at most {} connections: this process may have {} open files ({})",
                     files - kDescriptorsBesides, files, raise);
}

void reserve_descriptors(int64_t connections, const std::string& file) {
  const auto needed = static_cast<rlim_t>(connections + kDescriptorsBesides);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur >= needed) return;
  if (limit.rlim_max >= needed) {
    limit.rlim_cur = needed;
    if (::setrlimit(RLIMIT_NOFILE, &limit) == 0) return;
  }
  throw ConfigError(file, 0, "limits.connections", fmt::format("{}", connections),
                    connections_that_fit(limit.rlim_max, needed));
}

}  // namespace gnomon
