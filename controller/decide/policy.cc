#include "controller/decide/policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/named_file.h"

namespace gnomon::decide {

void Policy::Window::settle(const TomlTable& table) {
  if (!table.has("steps") && every > 0) steps = std::min(steps, every);
  if (!table.has("long_every")) long_every = std::max(long_every, long_steps);
  if (long_steps > 0 && long_steps <= steps) {
    table.refuse("long_steps",
                 fmt::format("0 (no long forks) or more than steps ({} here)", steps));
  }
  if (long_every < long_steps) {
    table.refuse("long_every", fmt::format("at least long_steps ({} here): long forks must not "
                                           "overlap",
                                           long_steps));
  }
  if (every > 0 && steps > every) {
    table.refuse("steps",
                 fmt::format("steps of at most every ({} here): windows must not overlap", every));
  }
}

void Policy::Detector::settle(const TomlTable& table) {
  if (!table.has("ceiling_percent")) {
    ceiling_percent = std::max(ceiling_percent, 2 * tolerance_percent);
  }
  if (ceiling_percent <= tolerance_percent) {
    table.refuse("ceiling_percent",
                 fmt::format("a ceiling above the tolerance ({} here)", tolerance_percent));
  }
}

void Policy::Ladder::settle(const TomlTable& table) const {
  const std::string all = fmt::format("\"{}\"", fmt::join(kRungs, "\", \""));
  if (rungs.empty()) table.refuse("rungs", "at least one of " + all);
  auto next = kRungs.begin();
  for (const std::string& rung : rungs) {
    next = std::find(next, kRungs.end(), rung);
    if (next == kRungs.end()) {
      table.refuse("rungs",
                   fmt::format("each rung once, in the order {}: the ladder only climbs", all));
    }
    ++next;
  }
}

void Policy::Return::settle(const TomlTable& table) {
  if (!table.has("quiet_windows_max")) {
    quiet_windows_max = std::max(quiet_windows_max, quiet_windows);
  }
  if (quiet_windows_max < quiet_windows) {
    table.refuse("quiet_windows_max",
                 fmt::format("at least quiet_windows ({} here)", quiet_windows));
  }
}

std::string_view mode_name(Mode mode) { return kModes[static_cast<size_t>(mode)]; }

std::optional<Mode> mode_from_name(std::string_view name) {
  const auto found = std::find(kModes.begin(), kModes.end(), name);
  if (found == kModes.end()) return std::nullopt;
  return static_cast<Mode>(found - kModes.begin());
}

Policy Policy::parse(std::string_view toml, const std::string& file) {
  TomlTable root = TomlTable::parse(toml, file);
  Policy policy;
  read_settings(root, policy);
  return policy;
}

Policy Policy::load(const std::string& path) { return parse(read_named_file_or_pipe(path), path); }

std::string Policy::to_toml() const { return gnomon::to_toml(list_settings(*this)); }

}  // namespace gnomon::decide
