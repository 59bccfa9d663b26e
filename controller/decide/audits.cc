#include "controller/decide/audits.h"

#include <fmt/format.h>

#include "controller/decide/investigating.h"
#include "controller/decide/spending.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"

namespace gnomon::decide {
namespace {

// The trainer's memory lost the state that the step before this one had left.
bool covers_changed_state(const State& s, const WindowState& window) {
  const int64_t damaged = s.watch.health.state_changed_step - 1;
  return window.start.step < damaged && damaged <= window.end_step();
}

// Two sources at least, or a difference could not be settled.
bool can_be_settled(const State& s) {
  return believed_verifiers(s).size() >= 2 || s.run.trainer_answers();
}

void finish_audit(Core& core, int64_t id) {
  find_window(core.s, id)->audit_pending = false;
  finish_window(core, id);
}

bool audit_elsewhere(Core& core, int64_t id, const std::string& verifier) {
  if (!others_believed(core.s, verifier)) return false;
  WindowState& window = *find_window(core.s, id);
  window.exact_by = verifier;
  OrderReplay wanted;
  wanted.arm = "same";
  wanted.priority = kPriorityInstrument;
  wanted.avoid = verifier;
  order(core, window, "audit", 0, std::move(wanted));
  return true;
}

void note_unusable(Core& core, int64_t id, const std::string& why) {
  int64_t& unusable = core.s.watch.audits_unusable;
  unusable += 1;
  const std::string sentence = fmt::format("{}: the audit of its bits says nothing: {}.",
                                           window_name(*find_window(core.s, id)), why);
  if (unusable == kAuditsUnusableMax) {
    core.record("instrument",
                sentence +
                    " No further bits are audited; losses are compared as before. Start a "
                    "verifier whose fingerprint is the run's.",
                {{"window", id}, {"why", why}})
        .window = id;
  } else {
    core.explain(sentence);
  }
  finish_audit(core, id);
}

}  // namespace

void order_audit(Core& core, WindowState& window) {
  State& s = core.s;
  // A window that is measured again may have one under way.
  const bool wanted = window.kind == "shadow" && !window.audit_pending && !s.ended &&
                      s.run.capabilities.exact_replay &&
                      s.watch.audits_unusable < kAuditsUnusableMax;
  // The base of a rollback was saved under the plan before it.
  if (window.start.plan_version != window.plan_version) return;
  if (!wanted || !can_be_settled(s)) return;
  int64_t& left = s.watch.audit_in;
  if (left > 0 && !covers_changed_state(s, window)) {
    left -= 1;
    return;
  }
  left = kAuditEvery - 1;
  window.audit_pending = true;
  order(core, window, "same", "audit", "", false, kPriorityInstrument);
}

void handle_audit(Core& core, int64_t id, const ReplayFinished& replay) {
  State& s = core.s;
  const WindowState window = *find_window(s, id);
  if (!replay.fingerprint_equal || replay.compared_steps == 0) {
    return note_unusable(
        core, id,
        replay.fingerprint_equal
            ? "the run reported no hashes of its steps"
            : fmt::format("{} has another fingerprint than the run", replay.verifier));
  }
  s.watch.audits_unusable = 0;
  if (!replay.on_trainer) note_exact(s, replay.verifier, !replay.first_mismatch_step);
  if (!replay.first_mismatch_step) {
    // Where the trainer says that its state has changed, nobody's word is enough that it has not.
    const bool again = covers_changed_state(s, window) && window.exact_by.empty();
    if (again && audit_elsewhere(core, id, replay.verifier)) return;
    core.explain(fmt::format("{} has the run's bits, says an audit by {}.", window_name(window),
                             replay.verifier));
    return finish_audit(core, id);
  }
  const std::string seen =
      fmt::format("{}: an audit by {} gives other bits than the run's from step {} on",
                  window_name(window), replay.verifier, *replay.first_mismatch_step);
  const std::string muted = core.muted();
  const bool busy = s.investigation || s.directive || core.held() || s.ended;
  RecordDecision& decision =
      core.record("alarm",
                  seen + (!muted.empty() ? ". Nothing follows: " + muted + "."
                          : busy         ? ". It is not looked into: something else is under way."
                                         : ", though its loss shows no damage."),
                  {{"window", id},
                   {"verifier", replay.verifier},
                   {"first_mismatch_step", *replay.first_mismatch_step}});
  decision.window = id;
  if (!muted.empty() || busy) return finish_audit(core, id);
  find_window(s, id)->audit_pending = false;
  open_audit_case(core, *find_window(s, id), replay);
}

void audit_failed(Core& core, int64_t id, const std::string& why) { note_unusable(core, id, why); }

}  // namespace gnomon::decide
