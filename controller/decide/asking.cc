#include "controller/decide/asking.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "controller/decide/confirm.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/plans.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kIncidentLeadSteps =
    4;  // an incident's replay starts at least so long before, if it can
// Replays of an incident are no longer than this, or than two checkpoints are apart: where windows
// are sparse, the oldest checkpoint that is kept may lie thousands of steps back.
constexpr int64_t kSpikeReplaySteps = 100;  // from a spike: three pairs of them are asked for
constexpr int64_t kLongForkSteps = 1000;    // of a long fork

int64_t longest_replay(const State& s, int64_t steps) {
  return std::max(steps, 2 * s.run.checkpoint_every);
}

// How a test of the triage is ordered.
struct HowToAsk {
  Arm arm;
  std::string plan;
  bool on_trainer = false;
};

HowToAsk how_to_ask(const State& s, const TriageTest& test, const WindowState& window) {
  if (test.kind.starts_with("bf16") || test.kind == "long_fork") return {"bf16", "", false};
  // The base of a rollback was saved under the plan before it: `same` would replay that one.
  const bool as_saved = window.start.plan_version == window.plan_version;
  const std::string plan = as_saved ? "" : plan_of(s, window.plan_version).toml;
  if (test.kind == "fakequant") return {"fakequant", plan, false};
  if (test.kind == "eager") return {"eager", plan, false};
  return {as_saved ? Arm("same") : Arm("plan"), plan, test.kind == "same_on_trainer"};
}

const WindowState& window_for(Core& core, const TriageTest& test) {
  State& s = core.s;
  Case& investigation = *s.investigation;
  if (!from_afar(investigation.evidence, test.kind, test.seed))
    return *find_window(s, investigation.window);
  if (investigation.far_window != 0) return *find_window(s, investigation.far_window);
  const WindowState near = *find_window(s, investigation.window);
  const KnownCheckpoint* start =
      incident_start(s, investigation.evidence.finding->step, near.plan_version, true);
  if (start == nullptr || start->step >= near.start.step) {
    investigation.far_window = near.id;
    return *find_window(s, near.id);
  }
  const WindowState& added =
      add_window(core, "incident", KnownCheckpoint(*start),
                 investigation.evidence.finding->step + kAroundSpike, "", near.plan_version);
  s.investigation->far_window = added.id;
  return added;
}

// Orders BF16 from the oldest kept checkpoint of the window's plan, since the evidence rises and
// not more than kLongForkSteps ago, to the newest; false when that is hardly longer than the
// window. (What lies before would make a gap that has just begun look like one that does not grow.)
bool order_long_fork(Core& core) {
  State& s = core.s;
  const WindowState window = *find_window(s, s.investigation->window);
  const int64_t rises = std::max(
      evidence_rises_after(s, window.id, risen_evidence(core.policy)).value_or(window.start.step),
      s.newest_step - std::max(longest_replay(s, kLongForkSteps), 2 * window.steps));
  const KnownCheckpoint* start = nullptr;
  const KnownCheckpoint* end = nullptr;
  for (const KnownCheckpoint& known : s.checkpoints) {
    if (known.attempt != s.attempt.number && known.step != s.attempt.base_step) continue;
    if (start == nullptr && known.step >= rises && plan_after(s, known) == window.plan_version &&
        one_plan(s, known.step, s.newest_step))
      start = &known;
    if (known.plan_version == window.plan_version) end = &known;
  }
  if (start == nullptr || end == nullptr || 2 * (end->step - start->step) < 3 * window.steps)
    return false;
  const WindowState& fork = add_window(core, "long", KnownCheckpoint(*start), end->step,
                                       std::string(end->uri), window.plan_version);
  s.investigation->fork_window = fork.id;
  order(core, fork, "bf16", "long_fork", "", true, kPriorityTriage);
  return true;
}

// Whom a test is kept from.
std::string not_for(const State& s, ReplayRole kind) {
  std::vector<std::string> names;
  if (kind == "same_elsewhere") names = {who_answered_same(s)};
  if (kind == "same_third") names = asked_about_bits(s);
  if (kind == "same_again") {
    names = believed_verifiers(s);
    std::erase(names, who_differs(s));
  }
  return fmt::format("{}", fmt::join(names, "\n"));
}

// The pairs of nudged replays are spread over the sources there are, so that neither arm's answers
// come from one alone: two verifiers take turns; one alone shares them with the trainer.
void spread(const State& s, const TriageTest& test, OrderReplay& wanted) {
  if (wanted.on_trainer) return;
  std::vector<std::string> able = believed_verifiers(s);
  std::erase_if(able, [&](const std::string& name) { return avoids(wanted.avoid, name); });
  if (able.size() >= 2) {
    if (!wanted.avoid.empty()) wanted.avoid += '\n';
    wanted.avoid += able[static_cast<size_t>(test.seed) % able.size()];
  } else if (able.size() == 1 && trainer_can_replay(s)) {
    wanted.on_trainer = test.seed % 2 == 0;
  }
}

// Verifiers that have answered the test.
std::vector<std::string> who_answered(const TriageEvidence& evidence, const TriageTest& test) {
  std::vector<std::string> names;
  for (const std::vector<TriageAnswer>* answers : {&evidence.answers, &evidence.seconds}) {
    for (const TriageAnswer& known : *answers) {
      if (known.kind == test.kind && known.seed == test.seed) names.push_back(known.verifier);
    }
  }
  return names;
}

bool asks_own_fp8(ReplayRole kind) {
  return kind == "fp8_nudged" || kind == "eager" || kind == "fakequant";
}

// A source that has not answered the test; false where there is none.
bool ask_second_source(const State& s, const TriageTest& test, OrderReplay& wanted) {
  const auto asked = who_answered(s.investigation->evidence, test);
  const auto is_in = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  std::vector<std::string> shown;
  if (asks_own_fp8(test.kind)) shown = shown_exact(s);
  std::vector<std::string> kept_from;
  const std::vector<std::string> all = believed_verifiers(s);
  std::ranges::copy_if(all, std::back_inserter(kept_from), [&](const std::string& name) {
    return is_in(asked, name) || (!shown.empty() && !is_in(shown, name));
  });
  wanted.avoid = fmt::format("{}", fmt::join(kept_from, "\n"));
  if (kept_from.size() < all.size()) return true;
  const auto by_trainer = [&](const TriageAnswer& known) {
    return known.on_trainer && known.kind == test.kind && known.seed == test.seed;
  };
  const TriageEvidence& evidence = s.investigation->evidence;
  wanted.on_trainer = trainer_can_replay(s) && std::ranges::none_of(evidence.answers, by_trainer) &&
                      std::ranges::none_of(evidence.seconds, by_trainer);
  return wanted.on_trainer;
}

}  // namespace

bool from_afar(const TriageEvidence& evidence, ReplayRole kind, int64_t seed) {
  return evidence.finding && (seed != 0 || kind == "bf16_far");
}

const KnownCheckpoint* incident_start(const State& s, int64_t step, int64_t plan_version,
                                      bool far) {
  const KnownCheckpoint* close = nullptr;
  const KnownCheckpoint* clear = nullptr;
  for (const KnownCheckpoint& known : s.checkpoints) {
    if (plan_after(s, known) != plan_version || known.step < s.attempt.base_step) continue;
    if (!one_plan(s, known.step, step)) continue;
    if (known.step < step) close = &known;
    if (known.step <= step - kIncidentLeadSteps) {
      clear = &known;
      if (far && known.step >= step - longest_replay(s, kSpikeReplaySteps)) break;
    }
  }
  return clear != nullptr ? clear : close;
}

const WindowState* window_of_bf16(const State& s) {
  const Case& investigation = *s.investigation;
  const bool far = spoilt_before(investigation.evidence) && investigation.far_window != 0;
  for (const WindowState& window : s.windows) {
    if (window.id == (far ? investigation.far_window : investigation.window)) return &window;
  }
  return nullptr;
}

bool is_under_way(const State& s, const TriageTest& test) {
  return std::any_of(s.replays.begin(), s.replays.end(), [&](const PendingReplay& replay) {
    return replay.role == test.kind && replay.number == test.seed && replay.second == test.second &&
           of_case(s, replay.window);
  });
}

void answer_failed(Core& core, const TriageTest& test) {
  TriageAnswer answer;
  answer.kind = test.kind;
  answer.seed = test.seed;
  answer.failed = true;
  TriageEvidence& evidence = core.s.investigation->evidence;
  (test.second ? evidence.seconds : evidence.answers).push_back(std::move(answer));
}

std::string who_answered_same(const State& s) {
  for (const TriageAnswer& known : s.investigation->evidence.answers) {
    if (known.kind == "same") return known.verifier;
  }
  return {};
}

std::string who_differs(const State& s) {
  for (const TriageAnswer& known : s.investigation->evidence.answers) {
    if (known.reproduction && known.reproduction->bitwise && !known.reproduction->reproduces)
      return known.verifier;
  }
  return {};
}

std::vector<std::string> asked_about_bits(const State& s) {
  std::vector<std::string> names;
  for (const TriageAnswer& known : s.investigation->evidence.answers) {
    if (known.kind == "same" || known.kind == "same_elsewhere") names.push_back(known.verifier);
  }
  return names;
}

void order_test(Core& core, const TriageTest& test) {
  State& s = core.s;
  if (test.kind == "confirm") {
    if (const WindowState* window = window_of_bf16(s)) confirm_for_case(core, window->id);
    return;
  }
  if (test.kind == "long_fork" && !test.second) {
    if (!order_long_fork(core)) answer_failed(core, test);
    return;
  }
  const bool of_fork = test.kind == "long_fork";
  if (of_fork && find_window(s, s.investigation->fork_window) == nullptr)
    return answer_failed(core, test);
  const WindowState window =
      of_fork ? *find_window(s, s.investigation->fork_window) : window_for(core, test);
  // The nearest checkpoint is the oldest one: this was answered.
  if (test.kind == "bf16_far" && window.id == s.investigation->window) {
    return answer_failed(core, test);
  }
  const HowToAsk how = how_to_ask(s, test, window);
  OrderReplay wanted;
  wanted.arm = how.arm;
  wanted.plan = how.plan;
  wanted.evaluate_endpoints = !s.investigation->evidence.finding;
  wanted.priority = kPriorityTriage;
  wanted.nudge = test.seed;
  wanted.on_trainer = how.on_trainer;
  wanted.avoid = not_for(s, test.kind);
  if (test.second) {
    if (!ask_second_source(s, test, wanted)) return answer_failed(core, test);
  } else {
    if (asks_own_fp8(test.kind)) ask_own_fp8(s, wanted);
    if (test.seed != 0) spread(s, test, wanted);
  }
  const int64_t id = order(core, window, test.kind, test.seed, std::move(wanted));
  for (PendingReplay& replay : s.replays) replay.second |= replay.id == id && test.second;
}

}  // namespace gnomon::decide
