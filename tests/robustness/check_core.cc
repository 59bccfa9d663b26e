#include <algorithm>
#include <variant>

#include "tests/robustness/findings.h"
#include "tests/robustness/replay_core.h"

namespace gnomon::robustness {
namespace {

// What the core wanted, as lines to be compared with rows.
struct Wanted {
  std::vector<std::string> decisions, directives, windows, replays;

  void add(const decide::Effect& effect, int64_t seq) {
    if (const auto* d = std::get_if<decide::RecordDecision>(&effect)) {
      decisions.push_back(decision_line(d->decision, d->kind, d->verdict, d->action, d->enforced,
                                        d->sentence, d->evidence, seq));
    } else if (const auto* i = std::get_if<decide::IssueDirective>(&effect)) {
      directives.push_back(
          directive_line(i->number, i->kind, i->plan, i->plan_version, i->to_step));
    } else if (const auto* w = std::get_if<decide::OpenWindow>(&effect)) {
      windows.push_back(window_line(w->window, w->kind, w->attempt, w->start_step, w->steps));
    } else if (const auto* r = std::get_if<decide::OrderReplay>(&effect)) {
      replays.push_back(replay_line(r->replay, r->window, r->arm, r->plan, r->purpose));
    }
  }
  static std::string decision_line(int64_t number, const std::string& kind,
                                   const std::string& verdict, const std::string& action,
                                   bool enforced, const std::string& sentence,
                                   const std::string& evidence, int64_t seq) {
    return fmt::format("{} {} {} {} {} of event {}: {} {}", number, kind, verdict, action, enforced,
                       seq, sentence, evidence);
  }
  static std::string directive_line(int64_t number, const std::string& kind,
                                    const std::string& plan, int64_t version, int64_t to_step) {
    return fmt::format("{} {} plan {} to step {}: {}", number, kind, version, to_step, plan);
  }
  static std::string window_line(int64_t window, const std::string& kind, int64_t attempt,
                                 int64_t start_step, int64_t steps) {
    return fmt::format("{} {} attempt {} from {} over {}", window, kind, attempt, start_step,
                       steps);
  }
  static std::string replay_line(int64_t replay, int64_t window, const std::string& arm,
                                 const std::string& plan, const std::string& purpose) {
    return fmt::format("{} of window {} arm {} for {}: {}", replay, window, arm, purpose, plan);
  }
};

Wanted on_record(const cli::LedgerView& view, int64_t run) {
  Wanted rows;
  for (const DecisionRow& d : view.decisions(run)) {
    rows.decisions.push_back(Wanted::decision_line(
        d.decision, d.kind, d.verdict, d.action, d.enforced, d.sentence, d.evidence, d.event_seq));
  }
  for (const DirectiveRow& d : view.directives(run)) {
    rows.directives.push_back(
        Wanted::directive_line(d.number, d.kind, d.plan, d.plan_version, d.to_step));
  }
  for (const WindowRow& w : view.windows(run)) {
    rows.windows.push_back(Wanted::window_line(w.window, w.kind, w.attempt, w.start_step, w.steps));
  }
  for (const ReplayRow& r : view.replays(run)) {
    rows.replays.push_back(Wanted::replay_line(r.replay, r.window, r.arm, r.plan, r.purpose));
  }
  return rows;
}

void compare(const RunRecord& run, const char* what, std::vector<std::string> wanted,
             std::vector<std::string> recorded, Findings& findings) {
  std::sort(wanted.begin(), wanted.end());
  std::sort(recorded.begin(), recorded.end());
  std::vector<std::string> only;
  std::set_difference(wanted.begin(), wanted.end(), recorded.begin(), recorded.end(),
                      std::back_inserter(only));
  for (const std::string& line : only) {
    findings.add("{}: the core, told again, has a {} that is not on record: {}",
                 run.scenario.name(), what, line);
  }
  only.clear();
  std::set_difference(recorded.begin(), recorded.end(), wanted.begin(), wanted.end(),
                      std::back_inserter(only));
  for (const std::string& line : only) {
    findings.add("{}: on record is a {} that the core, told again, has not: {}",
                 run.scenario.name(), what, line);
  }
}

}  // namespace

void check_core(const std::string& ledger, const RunRecord& run, Findings& findings) {
  const cli::LedgerView view(ledger);
  const std::vector<RunRow> rows = view.runs();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const auto& one) { return one.id == run.id; });
  if (row == rows.end()) {
    findings.add("{}: was registered and is not on record", run.scenario.name());
    return;
  }
  const decide::Policy policy = decide::Policy::parse(row->policy);
  const auto saved = view.decision_state(run.id);
  Wanted wanted;
  int64_t next = 1;
  replay_core(
      view, ledger, run.id, policy, [&](const auto& event, const auto& state, const auto& effects) {
        if (event.seq != next) {
          findings.add("{}: event {} follows event {}", run.scenario.name(), event.seq, next - 1);
        }
        next = event.seq + 1;
        for (const decide::Effect& effect : effects) wanted.add(effect, event.seq);
        if (saved && saved->seq == event.seq && saved->json != decide::state_to_json(state)) {
          findings.add("{}: the state written down after event {} is not what the events lead to",
                       run.scenario.name(), event.seq);
        }
      });
  if (!saved || saved->seq >= next) {
    findings.add("{}: the state written down is of an event that is not there",
                 run.scenario.name());
  }
  const Wanted recorded = on_record(view, run.id);
  compare(run, "decision", wanted.decisions, recorded.decisions, findings);
  compare(run, "directive", wanted.directives, recorded.directives, findings);
  compare(run, "window", wanted.windows, recorded.windows, findings);
  compare(run, "replay", wanted.replays, recorded.replays, findings);
}

}  // namespace gnomon::robustness
