// What an operator orders by hand.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 7> kOverrideKinds = {
    "pause", "resume", "stop", "checkpoint_now", "set_plan", "silence", "mode"};
using OverrideKind = Word<kOverrideKinds>;
// Empty: of no other kind than `mode`.
inline constexpr std::array<std::string_view, 4> kModesOrNone = {"", "observe", "advise",
                                                                 "enforce"};
using ModeOrNone = Word<kModesOrNone>;

// Kinds: pause, resume, stop, checkpoint_now (one directive, no expiry), set_plan (the run stays in
// `plan` until the expiry), silence (windows are measured, no action follows), mode (the run's mode
// is `mode`).
struct Override {
  OverrideKind kind = {};
  std::string plan = {};
  ModeOrNone mode = {};
  std::string owner = {};
  std::string reason = {};

  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Override;
    v("kind", &R::kind, Member{.required = true});
    v("plan", &R::plan,
      Member{.text = kPlanText, .help = "`set_plan`: TOML; it may name only sites of the run."});
    v("mode", &R::mode, Member{.help = "`mode`: which."});
    v("owner", &R::owner,
      Member{.required = true, .text = kName, .help = "Who asks; at most 200 bytes."});
    v("reason", &R::reason,
      Member{.required = true,
             .text = {.least = 1, .most = 4096, .form = Text::Form::kFree},
             .help = "Why; at most 4096 bytes."});
  }
};

// POST /v1/runs/{run}/overrides
struct OverrideRequest : Override {
  double expires_seconds = 0;

  static constexpr Record kRecord = {"OverrideRequest", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    Override::describe(v);
    v("expires_seconds", &OverrideRequest::expires_seconds,
      Member{.range = {0, 7776000},
             .help = "From now; above 0 for `set_plan`, `silence` and `mode`, 0 for the others."});
  }
};

struct OverrideRow : Override {
  int64_t run = 0;
  int64_t override = 0;
  double asked_at = 0;
  std::optional<double> expires_at = {};
  int64_t decision = 0;
  std::optional<int64_t> directive = {};

  static constexpr Row kRow = {"OverrideRow", "overrides"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = OverrideRow;
    v("run", &R::run, Member{});
    v("override", &R::override, Member{.help = "1, 2, …"});
    Override::describe(v);
    v("asked_at", &R::asked_at, Member{.range = kTime});
    v("expires_at", &R::expires_at, Member{.help = "Null: it does not expire."});
    v("decision", &R::decision, Member{.help = "Where it stands among the decisions."});
    v("directive", &R::directive, Member{.help = "Issued at once; null none."});
  }
};

struct OverrideAccepted {
  int64_t decision = 0;
  int64_t directive = 0;
  double expires_at = 0;

  static constexpr Record kRecord = {"OverrideAccepted", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = OverrideAccepted;
    v("decision", &R::decision,
      Member{.required = true, .help = "Where it stands among the decisions."});
    v("directive", &R::directive, Member{.help = "Issued at once; 0 none."});
    v("expires_at", &R::expires_at, Member{.help = "Seconds since the epoch; 0 does not expire."});
  }
};

}  // namespace gnomon
