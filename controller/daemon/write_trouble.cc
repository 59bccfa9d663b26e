#include "controller/daemon/write_trouble.h"

#include <fmt/format.h>

#include "base/counted.h"

namespace gnomon {

WriteTrouble::Line WriteTrouble::outcome(const std::string& why, double now) {
  constexpr double kLogEverySeconds = 300;
  if (why.empty()) {
    if (failed_ == 0) return {};
    const std::string text = fmt::format(
        "the ledger can be written again, after {:.0f} s; {} of writes failed, and what was not "
        "recorded was not acknowledged",
        now - since_, counted(failed_, "group"));
    failed_ = 0;
    return {text, true};
  }
  if (failed_++ == 0) {
    since_ = logged_at_ = now;
    return {
        fmt::format(
            "the ledger cannot be written, and what is not recorded is not acknowledged: {}", why),
        false};
  }
  if (now - logged_at_ < kLogEverySeconds) return {};
  logged_at_ = now;
  return {fmt::format("the ledger cannot be written since {:.0f} s: {}", now - since_, why), false};
}

}  // namespace gnomon
