// What the controller orders a trainer to do, and how far it got.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "protocol/records/member.h"
#include "protocol/records/word.h"

namespace gnomon {

inline constexpr std::array<std::string_view, 6> kDirectiveKinds = {
    "set_plan", "rollback", "checkpoint_now", "pause", "resume", "stop"};
using DirectiveKind = Word<kDirectiveKinds>;
inline constexpr std::array<std::string_view, 6> kDirectiveStates = {
    "pending", "delivered", "acknowledged", "applied", "rejected", "expired"};
using DirectiveState = Word<kDirectiveStates>;
inline constexpr std::array<std::string_view, 3> kAckStates = {"acknowledged", "applied",
                                                               "rejected"};
using AckState = Word<kAckStates>;

// Kinds: set_plan, rollback, checkpoint_now, pause, resume, stop.
struct Directive {
  int64_t number = 0;
  DirectiveKind kind;
  std::string plan;
  int64_t plan_version = 0;
  int64_t to_step = 0;
  std::string checkpoint_uri;
  std::string reason;
  DirectiveState state;

  static constexpr Record kRecord = {"Directive", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = Directive;
    v("number", &R::number,
      Member{.required = true,
             .range = {1, 1e15},
             .help = "In its run: 1, 2, …",
             .listed = {"number"}});
    v("kind", &R::kind, Member{.required = true, .listed = {"kind"}});
    v("plan", &R::plan,
      Member{.text = kPlanText,
             .help = "`set_plan`, `rollback`: TOML; empty keeps the checkpoint's plan."});
    v("plan_version", &R::plan_version, Member{.range = kPlanVersion, .listed = {"plan"}});
    v("to_step", &R::to_step,
      Member{.help = "`rollback`: the checkpoint's step.", .listed = {"to step"}});
    v("checkpoint_uri", &R::checkpoint_uri, Member{.text = kPath, .help = "`rollback`."});
    v("reason", &R::reason,
      Member{.text = kSentence, .help = "A sentence for people.", .listed = {"reason"}});
    v("state", &R::state, Member{.listed = {"state"}});
  }
};

struct DirectiveRow : Directive {
  int64_t run = 0;
  double issued_at = 0;
  std::optional<double> delivered_at = {};
  std::optional<double> acknowledged_at = {};
  std::optional<double> ended_at = {};
  std::optional<int64_t> applied_attempt = {};
  std::optional<int64_t> applied_step = {};
  std::optional<std::string> reject_reason = {};

  static constexpr Row kRow = {"DirectiveRow", "directives"};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = DirectiveRow;
    v("run", &R::run, Member{});
    Directive::describe(v);
    v("issued_at", &R::issued_at, Member{.range = kTime});
    v("delivered_at", &R::delivered_at, Member{.range = kTime});
    v("acknowledged_at", &R::acknowledged_at, Member{.range = kTime});
    v("ended_at", &R::ended_at, Member{.range = kTime});
    v("applied_attempt", &R::applied_attempt, Member{.range = kStep});
    v("applied_step", &R::applied_step, Member{.range = kStep});
    v("reject_reason", &R::reject_reason,
      Member{.help = "Why it was rejected or has expired.", .listed = {"why not"}});
  }
};

struct DirectiveList {
  std::vector<Directive> directives;

  static constexpr Record kRecord = {"DirectiveList", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = DirectiveList;
    v("directives", &R::directives, Member{.required = true});
  }
};

// POST /v1/runs/{run}/directives/{n}/ack
struct DirectiveAck {
  AckState state = {};
  int64_t attempt = 0;
  int64_t step = 0;
  std::string reason;
  double time = 0;

  static constexpr Record kRecord = {"DirectiveAck", ""};
  template <class Visitor>
  static void describe(Visitor&& v) {
    using namespace rules;
    using R = DirectiveAck;
    v("state", &R::state, Member{.required = true});
    v("attempt", &R::attempt, Member{.range = kStep});
    v("step", &R::step,
      Member{.range = kStep, .help = "`applied`: the last step before it took effect."});
    v("reason", &R::reason, Member{.text = kSentence, .help = "`rejected`: why."});
    v("time", &R::time, Member{.range = kTime});
  }
};

}  // namespace gnomon
