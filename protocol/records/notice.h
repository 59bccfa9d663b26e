// What people and the ledger should know, and no decision rests on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 5> kTrainerNoticeKinds = {
    "checkpoint_failed", "reports_dropped", "plan_without_controller", "data_mismatch",
    "gradient_mismatch"};
using TrainerNoticeKind = Word<kTrainerNoticeKinds>;
// gnomond's own word: on what the trainer reported of its GPU, and on replays that wait.
inline constexpr std::string_view kEccErrors = "ecc_errors";
inline constexpr std::string_view kNoVerifierFits = "no_verifier_fits";
inline constexpr std::string_view kRunSetAside = "run_set_aside";
inline constexpr std::array<std::string_view, 2> kOwnNoticeKinds = {kEccErrors, kNoVerifierFits};

inline constexpr std::array<std::string_view, 8> kNoticeKinds = {
    "checkpoint_failed", "reports_dropped", "plan_without_controller", "data_mismatch",
    "gradient_mismatch", kEccErrors,        kNoVerifierFits,           kRunSetAside};
using NoticeKind = Word<kNoticeKinds>;

struct NoticeRow {
  int64_t run = 0;
  int64_t notice = 0;
  int64_t attempt = 1;
  int64_t step = 0;
  NoticeKind kind;
  std::string text;
  int64_t plan_version = 0;
  double noticed_at = 0;
  double reported_at = 0;

  static constexpr Row kRow = {"NoticeRow", "notices"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = NoticeRow;
    v("run", &R::run, Member{});
    v("notice", &R::notice, Member{.help = "1, 2, …"});
    v("attempt", &R::attempt, Member{.range = kStep, .listed = {"attempt"}});
    v("step", &R::step,
      Member{.range = kStep, .help = "The newest finished step then.", .listed = {"step"}});
    v("kind", &R::kind,
      Member{.help = "gnomond's own are ecc_errors, no_verifier_fits and run_set_aside.",
             .listed = {"kind"}});
    v("text", &R::text, Member{.listed = {"text"}});
    v("plan_version", &R::plan_version,
      Member{.range = kPlanVersion,
             .help = "`plan_without_controller`: a row of `plans`; 0 otherwise."});
    v("noticed_at", &R::noticed_at,
      Member{.range = kTime,
             .help = "By the trainer's clock.",
             .listed = {"time", Listed::As::kTime}});
    v("reported_at", &R::reported_at, Member{.range = kTime});
  }
};

// POST /v1/runs/{run}/notices: something that people and the ledger should know and no decision
// rests on. A trainer's kinds are kTrainerNoticeKinds.
struct TrainerNotice {
  int64_t attempt = 1;
  int64_t step = 0;
  TrainerNoticeKind kind;
  std::string text;
  std::string plan;
  int64_t plan_version = 0;
  double time = 0;

  static constexpr Record kRecord = {"TrainerNotice", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = TrainerNotice;
    v("attempt", &R::attempt, Member{.required = true, .range = kStep});
    v("step", &R::step,
      Member{.required = true, .range = kStep, .help = "The newest finished step then."});
    v("kind", &R::kind, Member{.required = true});
    v("text", &R::text,
      Member{.required = true,
             .text = {.least = 1, .most = 16384, .form = Text::Form::kFree},
             .help = "A sentence for people."});
    v("plan", &R::plan,
      Member{.text = kPlanText, .help = "`plan_without_controller`: TOML; empty otherwise."});
    v("plan_version", &R::plan_version,
      Member{.range = kPlanVersion,
             .help = "`plan_without_controller`: what step reports will carry; 0 otherwise."});
    v("time", &R::time, Member{.range = kTime});
  }
};

}  // namespace gnomon
