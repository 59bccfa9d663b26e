// Windows: the steps that a BF16 shadow replays, and what it shows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

// shadow: a regular one; incident: about a spike or a step that is not finite; probe: whether the
// run's own plan is good again; long: a long fork.
inline constexpr std::array<std::string_view, 4> kWindowKinds = {"shadow", "incident", "probe",
                                                                 "long"};
using WindowKind = Word<kWindowKinds>;
inline constexpr std::array<std::string_view, 5> kWindowStates = {"open", "quiet", "alarm",
                                                                  "skipped", "failed"};
using WindowStatus = Word<kWindowStates>;

// Which steps of the run a window is about: start_step + 1 to start_step + steps.
struct WindowSpan {
  int64_t window = 0;
  WindowKind kind;
  int64_t attempt = 1;
  int64_t start_step = 0;
  int64_t steps = 0;
  std::string start_uri;
  std::string end_uri;
  int64_t plan_version = 0;

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = WindowSpan;
    v("window", &R::window, Member{.required = true, .help = "1, 2, …", .listed = {"window"}});
    v("kind", &R::kind, Member{.required = true, .listed = {"kind"}});
    v("attempt", &R::attempt, Member{.required = true, .range = kStep, .listed = {"attempt"}});
    v("start_step", &R::start_step,
      Member{.required = true, .range = kStep, .listed = {"from step"}});
    v("steps", &R::steps, Member{.required = true, .range = kStep, .listed = {"steps"}});
    v("start_uri", &R::start_uri, Member{.text = kPath});
    v("end_uri", &R::end_uri,
      Member{.text = kPath, .help = "The run's own checkpoint at its end; may be empty."});
    v("plan_version", &R::plan_version, Member{.range = kPlanVersion, .listed = {"plan"}});
  }
};

// What a window has shown; absent is not measured. A gauge shows the newest window's.
struct GapNumbers {
  std::optional<double> gap = {};
  std::optional<double> offset_loss = {};
  std::optional<double> d_percent = {};
  std::optional<double> tolerance_percent = {};
  std::optional<double> gap_error = {};
  std::string rule = {};
  std::optional<double> statistic = {};
  std::optional<double> threshold = {};
  std::optional<double> scale_percent = {};
  std::optional<double> null_percent = {};
  std::optional<std::string> why = {};

  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = GapNumbers;
    v("gap", &R::gap, Member{.null = true, .help = "L16(w8) − L16(w16) at the end, nats."});
    v("offset_loss", &R::offset_loss,
      Member{.null = true,
             .help = "L8 − L16 at the window's start, nats.",
             .listed = {"offset (nats)", Listed::As::kNats}});
    v("d_percent", &R::d_percent,
      Member{.null = true,
             .help = "100·gap / L16(w16).",
             .listed = {"gap", Listed::As::kPercent},
             .gauge = {"gnomon_run_gap_ratio", "newest window's gap as a share of the loss", 100}});
    v("tolerance_percent", &R::tolerance_percent,
      Member{.null = true,
             .help = "The policy's, when the window was judged.",
             .listed = {"tolerance", Listed::As::kPercent},
             .gauge = {"gnomon_run_gap_tolerance_ratio", "the tolerance on the gap", 100}});
    v("gap_error", &R::gap_error,
      Member{.null = true, .help = "Standard error of the gap over the held-out text, nats."});
    v("rule", &R::rule,
      Member{.help = "An alarm's rule: evidence, burst, ceiling, non_finite, or a rival's name."});
    v("statistic", &R::statistic, Member{.null = true, .help = "The detector's."});
    v("threshold", &R::threshold, Member{.null = true, .help = "An alarm from here on."});
    v("scale_percent", &R::scale_percent,
      Member{.null = true, .help = "Deviation of D in healthy windows, as known then."});
    v("null_percent", &R::null_percent,
      Member{.null = true, .help = "Mean D that is no fault, as known then."});
    v("why", &R::why, Member{.help = "Why it was skipped or failed.", .listed = {"why"}});
  }
};

struct WindowRow : WindowSpan, GapNumbers {
  int64_t run = 0;
  WindowStatus state = "open";
  double opened_at = 0;
  std::optional<double> closed_at = {};

  int64_t end_step() const { return start_step + steps; }
  bool closed() const { return state != "open"; }

  static constexpr Row kRow = {"WindowRow", "windows"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = WindowRow;
    v("run", &R::run, Member{});
    WindowSpan::describe(v);
    v("state", &R::state,
      Member{.help = "An open one that has been measured has its numbers; with a rule it is an "
                     "alarm whose case goes on.",
             .listed = {"state"}});
    GapNumbers::describe(v);
    v("opened_at", &R::opened_at, Member{.range = kTime});
    v("closed_at", &R::closed_at, Member{.range = kTime});
  }
};

// One step of a BF16 shadow.
struct ShadowStepRow {
  int64_t window = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  double loss = 0;

  static constexpr Row kRow = {"ShadowRow", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using R = ShadowStepRow;
    v("window", &R::window, Member{});
    v("attempt", &R::attempt, Member{});
    v("step", &R::step, Member{});
    v("loss", &R::loss, Member{});
  }
};

}  // namespace gnomon
