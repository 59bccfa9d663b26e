#include "controller/decide/trust.h"

#include <fmt/format.h>

#include <algorithm>

#include "controller/decide/bases.h"
#include "controller/decide/case.h"
#include "controller/decide/containment.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

constexpr size_t kQuarantinedMax = 64;
constexpr const char* kNotBelieved = "who measured it is not believed any more";

}  // namespace

void forget_witnesses(State& s, WindowState& window) {
  std::erase_if(s.replays, [&](const PendingReplay& replay) {
    return replay.window == window.id && replay.role == "confirm";
  });
  window.witnesses.clear();
  window.confirmation.clear();
  window.confirm_asked = 0;
  window.confirm_pending = false;
}

void drop_answers(State& s, const std::string& verifier) {
  if (!s.investigation) return;
  std::vector<TriageAnswer>& answers = s.investigation->evidence.answers;
  const auto answered = [&](ReplayRole kind) {
    return std::ranges::any_of(answers, [&](const TriageAnswer& answer) {
      return answer.kind == kind && answer.verifier == verifier;
    });
  };
  // Who is asked elsewhere depends on who was asked first.
  const bool first = answered("same"), second = answered("same_elsewhere");
  std::erase_if(answers, [&](const TriageAnswer& answer) {
    return answer.verifier == verifier || (first && answer.kind == "same_elsewhere") ||
           ((first || second) && answer.kind == "same_third");
  });
  s.investigation->evidence.seconds.clear();
}

void measure_again(Core& core, int64_t id, const std::string& avoid) {
  State& s = core.s;
  if (find_window(s, id) == nullptr) return;  // it has gone with what its verifier said of others
  WindowState& window = *find_window(s, id);
  forget_window(core, id);
  if (window.kind == "incident" || s.ended) {
    if (of_case(s, id)) {
      // A step that has spiked is looked into again, by others.
      const std::optional<SpikeFinding>& finding = s.investigation->evidence.finding;
      if (finding && finding->kind == "spike" && !s.suspicion && !s.ended)
        s.suspicion = Suspicion{*finding, window.start, s.attempt.number, window.plan_version};
      return end_case(core, "skipped", kNotBelieved);
    }
    close_window(core, id, "skipped", kNotBelieved);
    return settle_verified(core);
  }
  // What a case was asked for is not waited for any more.
  std::erase_if(s.replays, [&](const PendingReplay& replay) {
    return replay.window == id && replay.role != "probe" && replay.role != "audit" &&
           !is_of_instrument(replay.role);
  });
  forget_witnesses(s, window);
  window.measured.reset();
  window.judged.reset();
  window.deferred = false;
  window.outcome = "quiet";
  window.shadow_pending = true;
  OrderReplay wanted;
  wanted.arm = "bf16";
  wanted.evaluate_endpoints = true;
  wanted.priority = kPriorityShadow;
  wanted.avoid = avoid;
  order(core, window, "shadow", 0, std::move(wanted));
  if (of_case(s, id)) end_case(core, WindowStatus());
}

// A spike's case whose BF16 replay it did asks for that again.
static void ask_spike_again(Core& core, WindowState& window, const std::string& verifier) {
  forget_witnesses(core.s, window);
  drop_answers(core.s, verifier);
  core.case_continues = true;
}

// What the verifier said of open windows other than `but` is forgotten: those that it measured are
// measured again.
static void drop_witness(Core& core, const std::string& verifier, int64_t but) {
  std::vector<int64_t> first;
  for (WindowState& window : core.s.windows) {
    if (window.id == but || window.witnesses.empty()) continue;
    if (window.witnesses.front().verifier == verifier) {
      first.push_back(window.id);
    } else {
      std::erase_if(window.witnesses,
                    [&](const Witness& witness) { return witness.verifier == verifier; });
    }
  }
  for (int64_t id : first) {
    WindowState* window = find_window(core.s, id);
    if (window == nullptr) continue;
    if (window->measured || !of_case(core.s, id)) {
      measure_again(core, id);
    } else {
      ask_spike_again(core, *window, verifier);
    }
  }
}

void distrust(Core& core, const std::string& verifier, const std::string& why, VerdictName verdict,
              int64_t window) {
  State& s = core.s;
  forget_verifier(core, verifier);
  forget_record(s, verifier);
  // What it had under way when it was named may come late.
  if (!believed(s, verifier)) return;
  if (s.trust.quarantined.size() >= kQuarantinedMax)
    s.trust.quarantined.erase(s.trust.quarantined.begin());
  s.trust.quarantined.push_back(verifier);
  core.effects.emplace_back(QuarantineVerifier{verifier, why});
  RecordDecision& decision =
      core.record("action",
                  fmt::format("No replay of this run goes to {} any more; what it measured "
                              "is no evidence.",
                              verifier),
                  {{"verifier", verifier}});
  decision.verdict = verdict;
  decision.action = "quarantine";
  decision.enforced = true;
  decision.window = window;
  drop_witness(core, verifier, window);
  forget_probes_of(s, verifier);
}

void withdraw_window(Core& core, int64_t id) {
  forget_window(core, id);
  if (of_case(core.s, id)) return end_case(core, "skipped", kNotBelieved);
  close_window(core, id, "skipped", kNotBelieved);
  settle_verified(core);
}

}  // namespace gnomon::decide
