#include "base/failpoint.h"

#include <fmt/format.h>
#include <signal.h>

#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

#include "base/errors.h"

namespace gnomon::failpoint {
namespace {

constexpr const char* kVariable = "GNOMON_FAILPOINTS";
constexpr const char* kAccepted =
    "POINT=ACTION[@N], separated by ';': a point of base/failpoint.h, kill, stop, delay:MS or (at "
    "some) error, N from 1; or wall_clock=offset:FILE";

struct Name {
  std::string_view name;
  bool may_fail;
};
constexpr std::array<Name, 9> kPoints = {{{"before_commit", true},
                                          {"after_commit", false},
                                          {"before_answer", false},
                                          {"wal_checkpoint", false},
                                          {"migration", true},
                                          {"backup_copy", true},
                                          {"backup_rename", true},
                                          {"state_saved", true},
                                          {"notify_delivered", false}}};

enum class Action { kNone, kKill, kStop, kDelay, kError };

struct Setting {
  Action action = Action::kNone;
  int64_t delay_ms = 0;
  int64_t at = 0;  // which time; 0 = each
  std::atomic<int64_t> times = 0;
};
std::array<Setting, kPoints.size()> settings;
std::string clock_file;  // written before any thread is there

std::optional<int64_t> positive(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value > 0 ? std::optional<int64_t>(value) : std::nullopt;
}

[[noreturn]] void refuse(std::string_view text) {
  throw ConfigError("environment", 0, kVariable, std::string(text), kAccepted);
}

void set_one(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos) refuse(text);
  std::string_view action = text.substr(equals + 1);
  constexpr std::string_view kOffset = "offset:";
  if (text.substr(0, equals) == "wall_clock" && action.starts_with(kOffset)) {
    clock_file = action.substr(kOffset.size());
    return;
  }
  size_t point = 0;
  while (point < kPoints.size() && kPoints[point].name != text.substr(0, equals)) ++point;
  if (point == kPoints.size()) refuse(text);
  Setting& setting = settings[point];
  if (const size_t at = action.find('@'); at != std::string_view::npos) {
    const std::optional<int64_t> number = positive(action.substr(at + 1));
    if (!number) refuse(text);
    setting.at = *number;
    action = action.substr(0, at);
  }
  constexpr std::string_view kDelay = "delay:";
  if (action == "kill") {
    setting.action = Action::kKill;
  } else if (action == "stop") {
    setting.action = Action::kStop;
  } else if (action == "error" && kPoints[point].may_fail) {
    setting.action = Action::kError;
  } else if (const auto delay = positive(action.substr(std::min(kDelay.size(), action.size())));
             action.starts_with(kDelay) && delay) {
    setting.action = Action::kDelay;
    setting.delay_ms = *delay;
  } else {
    refuse(text);
  }
}

}  // namespace

namespace internal {

std::atomic<bool> any = false;

void act(Point point) {
  const auto number = static_cast<size_t>(point);
  Setting& setting = settings[number];
  if (setting.action == Action::kNone) return;
  const int64_t time = ++setting.times;
  if (setting.at != 0 && setting.at != time) return;
  switch (setting.action) {
    case Action::kNone:
      return;
    case Action::kKill:
      ::raise(SIGKILL);
      return;
    case Action::kStop:
      ::raise(SIGSTOP);
      return;
    case Action::kDelay:
      std::this_thread::sleep_for(std::chrono::milliseconds(setting.delay_ms));
      return;
    case Action::kError:
      throw Error(fmt::format("the failpoint {} says so", kPoints[number].name));
  }
}

}  // namespace internal

void set(const std::string& text) {
  internal::any = false;
  clock_file.clear();
  for (Setting& setting : settings) {
    setting.action = Action::kNone;
    setting.at = 0;
    setting.times = 0;
  }
  std::string_view rest = text;
  while (!rest.empty()) {
    const std::string_view one = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(one.size() + 1, rest.size()));
    if (!one.empty()) set_one(one);
  }
  internal::any = !text.empty();
}

std::string set_from_environment() {
  const char* text = std::getenv(kVariable);
  set(text == nullptr ? "" : text);
  return text == nullptr ? "" : text;
}

double wall_clock_offset() {
  if (!internal::any.load(std::memory_order_relaxed) || clock_file.empty()) return 0;
  double seconds = 0;
  std::ifstream(clock_file) >> seconds;
  return seconds;
}

}  // namespace gnomon::failpoint
