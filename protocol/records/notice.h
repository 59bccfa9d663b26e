// What people and the ledger should know, and no decision rests on.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "protocol/records/member.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 3> kTrainerNoticeKinds = {
    "checkpoint_failed", "reports_dropped", "plan_without_controller"};
// gnomond's own word: on what the trainer reported of its GPU, and on replays that wait.
inline constexpr std::string_view kEccErrors = "ecc_errors";
inline constexpr std::string_view kNoVerifierFits = "no_verifier_fits";
inline constexpr std::array<std::string_view, 2> kOwnNoticeKinds = {kEccErrors, kNoVerifierFits};

// POST /v1/runs/{run}/notices: something that people and the ledger should know and no decision
// rests on. A trainer's kinds are kTrainerNoticeKinds.
struct TrainerNotice {
  int64_t attempt = 1;
  int64_t step = 0;
  std::string kind;
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
    v("kind", &R::kind, Member{.required = true, .words = kTrainerNoticeKinds});
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
