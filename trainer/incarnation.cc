#include "trainer/incarnation.h"

#include <fmt/format.h>

#include <chrono>

#include "base/random.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;

const Clock::time_point kStart = Clock::now();

}  // namespace

const std::string& process_incarnation() {
  static const std::string incarnation = fmt::format("{:016x}", random_bits());
  return incarnation;
}

double process_seconds() { return std::chrono::duration<double>(Clock::now() - kStart).count(); }

std::string with_incarnation(const std::string& target, const std::string& incarnation) {
  if (incarnation.empty()) return target;
  const char* before = target.find('?') == std::string::npos ? "?" : "&";
  return fmt::format("{}{}incarnation={}", target, before, incarnation);
}

}  // namespace gnomon
