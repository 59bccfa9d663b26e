#include "controller/decide/gap_words.h"

#include <fmt/format.h>

#include "base/printable.h"
#include "controller/decide/core.h"
#include "controller/decide/kept_damage.h"
#include "controller/decide/recovery.h"
#include "controller/decide/shaken.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {

namespace json = boost::json;

json::object gap_evidence(const WindowState& window, const GapVerdict& verdict) {
  const Measurement& m = *window.measured;
  return {{"window", window.id},
          {"start_step", window.start.step},
          {"end_step", window.end_step()},
          {"gap", m.gap ? number(*m.gap) : json::value(nullptr)},
          {"gap_error", m.gap_error ? number(*m.gap_error) : json::value(nullptr)},
          {"offset", m.offset ? number(*m.offset) : json::value(nullptr)},
          {"d_percent", number(*m.d_percent)},
          {"bf16_loss", number(*m.reference)},
          {"rule", verdict.rule},
          {"statistic", number(verdict.statistic)},
          {"threshold", number(verdict.threshold)},
          {"x", number(verdict.x)},
          {"scale_percent", number(verdict.scale_percent)},
          {"null_percent", number(verdict.null_percent)},
          {"freedom", number(verdict.freedom)}};
}

std::string alarm_words(const WindowState& window) {
  const Measurement& m = *window.measured;
  const GapVerdict& verdict = *window.judged;
  if (!m.gap) {
    return fmt::format("{}: the FP8 run's held-out loss is not finite, the BF16 replay's is",
                       window_name(window));
  }
  const std::string why =
      verdict.rule == "ceiling"
          ? fmt::format("one window may not be over {}", percent(verdict.threshold))
      : verdict.rule == "jump"
          ? fmt::format("that is {:.1f} deviations over {}, for one window too far", verdict.x,
                        percent(verdict.null_percent))
      : verdict.rule == kRecoveryRule
          ? fmt::format(
                "the windows since the action lose {} on average and {} is tolerated: it "
                "was not enough",
                percent(verdict.statistic), percent(verdict.threshold))
      : verdict.rule == kSignsRule
          ? fmt::format(
                "it was over {} in nearly all of the windows that shared shocks or other "
                "tokens have shaken: chance would put half of them there (evidence {}, "
                "where {} is an alarm)",
                percent(verdict.null_percent), plain_number(verdict.statistic),
                plain_number(verdict.threshold))
      : verdict.rule == kKeptRule
          ? fmt::format(
                "each window loses little, but over the steps between them it adds up to "
                "{}, and the held-out loss lies {} over its lowest",
                percent(verdict.statistic), percent(rise_of(verdict.threshold)))
      : verdict.rule == "evidence"
          ? fmt::format("evidence of {} against a mean gap of at most {}, where {} is an alarm",
                        plain_number(verdict.statistic), percent(verdict.null_percent),
                        plain_number(verdict.threshold))
          : fmt::format("{} {}, where {} is an alarm", verdict.rule,
                        plain_number(verdict.statistic), plain_number(verdict.threshold));
  return fmt::format("{}: the FP8 run's held-out loss is {} above the BF16 replay's; {}",
                     window_name(window), percent(*m.d_percent), why);
}

}  // namespace gnomon::decide
