#include "controller/decide/confirm.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "controller/decide/bases.h"
#include "controller/decide/case.h"
#include "controller/decide/claims.h"
#include "controller/decide/evidence_windows.h"
#include "controller/decide/gap_settings.h"
#include "controller/decide/measurement.h"
#include "controller/decide/stability.h"
#include "controller/decide/trust.h"
#include "controller/decide/verifier_records.h"
#include "controller/decide/windows.h"
#include "controller/decide/witnesses.h"

namespace gnomon::decide {
namespace {

namespace json = boost::json;

constexpr int64_t kAskedSecond = 1, kAskedThird = 2, kAskedTrainer = 4;
constexpr int64_t kSettled =
    4;  // windows of a verifier after which others would have been heard of
constexpr int kPriorityConfirm = 40;

bool has_answered(const WindowState& window, const std::string& verifier) {
  return std::ranges::find(window.witnesses, verifier, &Witness::verifier) !=
         window.witnesses.end();
}

bool others_known(const State& s, const WindowState& window) {
  return std::ranges::any_of(believed_verifiers(s), [&](const std::string& known) {
    return !has_answered(window, known);
  });
}

// A trainer that only confirms is not stopped for a routine check.
bool trainer_is_left(const State& s, const WindowState& window) {
  const bool needed = window.odd || window.witnesses.size() >= 2 || of_case(s, window.id);
  const bool answers = s.run.trainer_replays || (s.run.trainer_confirms && needed);
  return answers && (window.confirm_asked & kAskedTrainer) == 0 &&
         std::ranges::none_of(window.witnesses, &Witness::on_trainer);
}

void order_witness(Core& core, WindowState& window, int64_t asked, int priority) {
  OrderReplay wanted;
  wanted.arm = "bf16";
  wanted.evaluate_endpoints = window.witnesses.front().measured.reference.has_value();
  wanted.priority = priority;
  wanted.on_trainer = asked == kAskedTrainer;
  for (const Witness& witness : window.witnesses) {
    if (witness.on_trainer) continue;
    if (!wanted.avoid.empty()) wanted.avoid += '\n';
    wanted.avoid += witness.verifier;
  }
  window.confirm_asked += asked;
  window.confirm_pending = true;
  order(core, window, "confirm", 0, std::move(wanted));
}

// Orders the next source's replay; false when nobody is left who could be asked.
bool ask_next(Core& core, WindowState& window, int priority) {
  const State& s = core.s;
  if (s.ended || window.witnesses.empty() || in_memory(window.start)) return false;
  const Witness& first = window.witnesses.front();
  const bool second = window.witnesses.size() < 2;
  const int64_t elsewhere = second ? kAskedSecond : kAskedThird;
  const VerifierRecord* record = find_record(s, first.verifier);
  const bool early = record == nullptr || record->windows <= kSettled;
  // Where two contradict each other somebody is asked in any case: a third that has not answered
  // before, or else one of the two again. Of one that is alone, its own repetition at least:
  // whoever contradicts itself is found.
  const bool worth_it = !second || others_known(s, window) ||
                        (second && !first.on_trainer && (early || !trainer_is_left(s, window)));
  if ((window.confirm_asked & elsewhere) == 0 && worth_it) {
    order_witness(core, window, elsewhere, priority);
    return true;
  }
  if (!trainer_is_left(s, window)) return false;
  order_witness(core, window, kAskedTrainer, priority);
  return true;
}

json::object witness_evidence(const WindowState& window) {
  json::array all;
  for (const Witness& witness : window.witnesses) {
    const Measurement& m = witness.measured;
    json::object one{{"verifier", witness.verifier}, {"on_trainer", witness.on_trainer}};
    if (m.reference) one["bf16_loss"] = number(*m.reference);
    if (m.d_percent) one["d_percent"] = number(*m.d_percent);
    if (witness.suffers) one["suffers"] = *witness.suffers;
    one["end_hash"] = witness.end_hash;
    all.push_back(std::move(one));
  }
  return {{"window", window.id}, {"witnesses", std::move(all)}};
}

RecordDecision& record_broken(Core& core, const WindowState& window, std::string sentence) {
  RecordDecision& decision =
      core.record("instrument", std::move(sentence), witness_evidence(window));
  decision.verdict = "broken_instrument";
  decision.window = window.id;
  return decision;
}

void break_instrument(Core& core, int64_t id, const std::string& sentence) {
  InstrumentState& instrument = core.s.watch.instrument;
  if (!instrument.disputed) record_broken(core, *find_window(core.s, id), sentence);
  instrument.broken = instrument.disputed = true;
  withdraw_window(core, id);
}

void end_dispute(Core& core, const WindowState& window, const std::string& why) {
  InstrumentState& instrument = core.s.watch.instrument;
  if (!instrument.disputed) return;
  instrument.broken = instrument.disputed = false;
  RecordDecision& decision = core.record(
      "instrument", fmt::format("{}: {}. Gaps are judged from now on.", window_name(window), why),
      witness_evidence(window));
  decision.window = window.id;
  restart_gap(core.s.watch.gap);
  core.s.watch.burst_left = 0;
}

void agree_on_scale(Core& core) {
  InstrumentState& instrument = core.s.watch.instrument;
  instrument.scale_agreed = std::max(instrument.scale_agreed, instrument.scale_recorded);
}

// Nothing contradicts the window: what waited for it continues.
void continue_with(Core& core, int64_t id) {
  if (of_case(core.s, id)) {
    core.case_continues = true;
    return;
  }
  finish_window(core, id);
  settle_verified(core);
}

void settle_agreed(Core& core, WindowState& window) {
  State& s = core.s;
  window.confirmation = "agreed";
  for (const Witness& witness : window.witnesses) note_checked(s, witness.verifier);
  for (std::vector<EvidenceWindow>* seen : {&s.watch.seen, &s.watch.long_seen}) {
    for (EvidenceWindow& known : *seen) known.confirmed |= known.window == window.id;
  }
  if (window.witnesses.size() == 2) note_parted(core, window);
}

// Every source sees no difference between FP8 and BF16: recorded once.
void record_identical(Core& core, const WindowState& window) {
  State& s = core.s;
  const double d = window.measured ? window.measured->d_percent.value_or(1) : 1;
  if (window.suspicion.empty() || s.trust.zeros_recorded || std::abs(d) >= kNoDifference) return;
  s.trust.zeros_recorded = true;
  RecordDecision& decision = core.record(
      "instrument",
      fmt::format("{}: {}, and a second source says the same. Look whether the run computes in FP8 "
                  "at all.",
                  window_name(window), window.suspicion),
      witness_evidence(window));
  decision.window = window.id;
}

// Nobody else could be asked. True when the window is done with.
bool note_alone(Core& core, int64_t id) {
  WindowState& window = *find_window(core.s, id);
  window.confirmation = "alone";
  for (const Witness& witness : window.witnesses) note_checked(core.s, witness.verifier);
  if (!window.suspicion.empty()) {
    break_instrument(
        core, id,
        fmt::format("{}: {}, and nobody else can be asked: the instrument is broken. Gaps lead to "
                    "nothing until a window is sound. Start another verifier.",
                    window_name(window), window.suspicion));
    return true;
  }
  agree_on_scale(core);
  record_claims(core, window, false);
  const double d = window.measured ? window.measured->d_percent.value_or(HUGE_VAL) : HUGE_VAL;
  if (std::abs(d) <= core.policy.detector.tolerance_percent)
    end_dispute(core, window, "what its verifier says is possible again");
  else if (reports_name(window.reports_percent, d))
    end_dispute(core, window, "the trainer's own losses bear its verifier out");
  return false;
}

void settle_alone(Core& core, int64_t id) {
  if (!note_alone(core, id)) continue_with(core, id);
}

// This source's answer is what the window, and a case about it, count.
void count_answer(Core& core, WindowState& window, const Witness& counts) {
  if (!window.measured || window.verifier == counts.verifier) return;
  window.measured = counts.measured;
  window.verifier = counts.verifier;
  if (of_case(core.s, window.id)) core.s.investigation->evidence.measured = counts.measured;
}

// Whoever of them contradicts the one with this number by more than honest replays may. `because`
// says why that one is believed, where no second one says the same.
void name_liars(Core& core, int64_t id, size_t with, const std::string& because) {
  const WindowState window = *find_window(core.s, id);
  const Witness believed_one = window.witnesses[with];
  const auto agrees = [&](const Witness& witness, double noise) {
    return compare_witnesses(witness, believed_one, noise).agrees;
  };
  std::vector<Witness> liars, others;
  bool counts_other = false;
  for (const Witness& witness : window.witnesses) {
    if (agrees(witness, noise_between(core))) {
      others.push_back(witness);
    } else if (!agrees(witness, noise_that_names(core))) {
      liars.push_back(witness);
    } else {
      counts_other |= window.verifier == witness.verifier;
    }
  }
  // What was judged was less than what counts.
  const double judged = window.measured ? window.measured->d_percent.value_or(0) : 0;
  const double more = believed_one.measured.d_percent.value_or(0) - judged;
  if (counts_other && more > core.policy.detector.tolerance_percent && liars.empty() &&
      window.kind == "shadow" && !of_case(core.s, id))
    return measure_again(core, id, window.verifier);
  if (counts_other) count_answer(core, *find_window(core.s, id), believed_one);
  if (liars.empty()) {
    record_identical(core, window);
    record_claims(core, window, true);
    return continue_with(core, id);
  }
  for (const Witness& liar : liars) {
    const Agreement seen = compare_witnesses(liar, believed_one, noise_that_names(core));
    const std::string sentence = fmt::format(
        "{}: the BF16 replays of one window contradict each other, and {} stands alone against "
        "{}{}: "
        "{}. Its answers are not believed any more.",
        window_name(window), liar.verifier, others[0].verifier,
        others.size() > 1 ? " and " + others[1].verifier : ", " + because, seen.sentence);
    record_broken(core, window, sentence);
    if (liar.on_trainer) continue;
    distrust(core, liar.verifier, sentence, "broken_instrument", id);
    drop_answers(core.s, liar.verifier);
  }
  // A case that rested on what they said has ended, and may have taken the window with it.
  WindowState* left = find_window(core.s, id);
  if (left == nullptr) return;
  const bool measured_by_liar =
      std::ranges::find(liars, left->verifier, &Witness::verifier) != liars.end();
  if (measured_by_liar && left->kind != "incident") return measure_again(core, id);
  left->witnesses = others;
  record_claims(core, *left, true);
  continue_with(core, id);
}

void record_offsets(Core& core, const WindowState& window) {
  std::vector<std::string> said;
  for (const Witness& one : window.witnesses) {
    if (one.measured.offset)
      said.push_back(fmt::format("{:.4f} nats says {}", *one.measured.offset, one.verifier));
  }
  RecordDecision& decision = core.record(
      "instrument",
      fmt::format(
          "{}: sources contradict each other about what evaluating in FP8 costs at equal "
          "weights: {}. What nobody bears out finds no drift; gaps are judged as before. A third "
          "verifier can tell which of two is wrong.",
          window_name(window), fmt::join(said, ", ")),
      witness_evidence(window));
  decision.window = window.id;
}

// Where two say the same of what evaluating in FP8 costs, they bear each other out. The windows of
// whoever is contradicted and not borne out do not count for it. True when the case is about that,
// and waits for another source or ends.
bool weigh_offsets(Core& core, int64_t id, int priority) {
  State& s = core.s;
  WindowState& window = *find_window(s, id);
  std::vector<std::string>& disputed = s.watch.instrument.offset_disputed;
  const bool of_offset = of_case(s, id) && s.investigation->evidence.trigger == "offset";
  std::vector<Witness> all;
  std::ranges::copy_if(window.witnesses, std::back_inserter(all),
                       [](const Witness& one) { return one.measured.offset.has_value(); });
  if (all.size() < 2) return false;
  const auto apart = [&](const Witness& one, const Witness& other) {
    return one.verifier != other.verifier && offsets_apart(one, other, noise_between(core));
  };
  std::vector<Witness> contradicted;
  for (const Witness& one : all) {
    const auto against =
        std::ranges::count_if(all, [&](const auto& other) { return apart(one, other); });
    if (against == std::ssize(all) - 1) contradicted.push_back(one);
  }
  if (contradicted.size() == all.size() && of_offset && ask_next(core, window, priority)) {
    window.confirmation.clear();
    return true;
  }
  const bool news = std::ranges::none_of(contradicted, [&](const Witness& one) {
    return std::ranges::count(disputed, one.verifier) > 0;
  });
  for (const Witness& one : all) std::erase(disputed, one.verifier);
  for (const Witness& one : contradicted) disputed.push_back(one.verifier);
  if (disputed.size() > kVerifiersMax)
    disputed.erase(disputed.begin(), disputed.end() - kVerifiersMax);
  if (contradicted.empty()) return false;
  if (news) record_offsets(core, window);
  const std::string& measured_by = window.witnesses.front().verifier;
  if (std::ranges::count(contradicted, measured_by, &Witness::verifier) == 0) return false;
  if (window.measured) window.measured = without_offset(*window.measured);
  if (of_case(s, id))
    s.investigation->evidence.measured = without_offset(s.investigation->evidence.measured);
  if (!of_offset) return false;
  s.watch.offset_level = s.watch.offset_level_before;
  withdraw_window(core, id);
  return true;
}

void weigh(Core& core, int64_t id, int priority) {
  WindowState& window = *find_window(core.s, id);
  if (const auto pair = agreeing(window, noise_between(core))) {
    settle_agreed(core, window);
    agree_on_scale(core);
    end_dispute(core, window, "two sources agree again");
    if (weigh_offsets(core, id, priority)) return;
    return name_liars(core, id, pair->first, "");
  }
  if (ask_next(core, window, priority)) return;
  if (const auto one = reported(core, window)) {
    settle_agreed(core, window);
    agree_on_scale(core);
    end_dispute(core, window, "the trainer's own losses bear one of them out");
    return name_liars(core, id, *one, "which the trainer's own reported losses bear out");
  }
  if (const auto one = plausible_of_two(core, window)) {
    const std::string why = implausible(core.s, window.witnesses[1 - *one]);
    end_dispute(core, window, "one of them is not possible");
    return name_liars(core, id, *one, "and it answers what no replay can (" + why + ")");
  }
  // Honest replays may part so far: of two that do, the one that says less against FP8 counts,
  // and they vouch for no larger noise.
  if (const auto pair = agreeing(window, noise_that_names(core))) {
    const Witness first = window.witnesses[pair->first], second = window.witnesses[pair->second];
    const bool less = second.measured.d_percent.value_or(0) < first.measured.d_percent.value_or(0);
    settle_agreed(core, window);
    end_dispute(core, window, "two sources agree again within the noise of replays");
    count_answer(core, window, less ? second : first);
    return continue_with(core, id);
  }
  const Witness one = window.witnesses[0], other = window.witnesses[1];
  if (window.witnesses.size() == 2 && agree_but_for_offset(one, other, noise_between(core))) {
    settle_agreed(core, window);
    agree_on_scale(core);
    end_dispute(core, window, "two sources agree again about the weights");
    if (weigh_offsets(core, id, priority)) return;
    record_claims(core, window, true);
    return continue_with(core, id);
  }
  const Agreement seen = compare_witnesses(one, other, noise_between(core));
  for (const Witness& witness : window.witnesses) note_checked(core.s, witness.verifier);
  break_instrument(
      core, id,
      fmt::format("{}: the BF16 replays of one window contradict each other, and nobody is left to "
                  "say who is wrong: {}. The instrument is broken. Gaps lead to nothing until two "
                  "sources agree. Start another verifier.",
                  window_name(window), seen.sentence));
}

// The same source again: other bits are its own contradiction.
void handle_repetition(Core& core, int64_t id, const Witness& said, int priority) {
  WindowState& window = *find_window(core.s, id);
  const Witness before = *std::ranges::find(window.witnesses, said.verifier, &Witness::verifier);
  const Agreement again = compare_witnesses(before, said, noise_that_names(core));
  if (!again.agrees && !said.on_trainer) {
    const std::string sentence = fmt::format(
        "{}: {} contradicts itself about one window: {}. Its answers are not believed any more.",
        window_name(window), said.verifier, again.sentence);
    record_broken(core, window, sentence);
    distrust(core, said.verifier, sentence, "broken_instrument", id);
    drop_answers(core.s, said.verifier);
    WindowState* left = find_window(core.s, id);
    if (left == nullptr) return;
    if (left->measured || !of_case(core.s, id)) return measure_again(core, id);
    forget_witnesses(core.s, *left);
    core.case_continues = true;
    return;
  }
  if (ask_next(core, window, priority)) return;
  if (window.witnesses.size() >= 2) return weigh(core, id, priority);
  settle_alone(core, id);
}

int priority_of(const State& s, int64_t window) {
  return of_case(s, window) ? kPriorityTriage : kPriorityConfirm;
}

}  // namespace

bool ask_about_divergence(Core& core, int64_t id, const ReplayFinished& replay) {
  WindowState& window = *find_window(core.s, id);
  window.witnesses = {witness_of(replay)};
  window.witnesses.front().measured = {};
  window.witnesses.front().suffers = true;
  window.confirm_asked = 0;
  window.confirmation.clear();
  window.odd = true;
  return ask_next(core, window, kPriorityConfirm);
}

bool note_shadow(Core& core, int64_t id, const ReplayFinished& replay) {
  WindowState& window = *find_window(core.s, id);
  window.witnesses = {witness_of(replay)};
  window.confirm_asked = 0;
  window.confirmation.clear();
  window.reports_percent = reports_over(replay);
  const CheckDue due = note_answer(core, window, replay);
  window.suspicion = due.suspicion;
  window.odd = due.odd;
  if (!due.check) return false;
  if (ask_next(core, window, kPriorityConfirm)) return false;
  return note_alone(core, id);
}

void confirm_for_case(Core& core, int64_t id) {
  WindowState& window = *find_window(core.s, id);
  if (window.confirm_pending || !window.confirmation.empty()) return;
  if (window.witnesses.empty() && window.measured) {  // a state of an older version
    Witness first;
    first.verifier = window.verifier;
    first.measured = *window.measured;
    first.end_hash = window.shadow_hash;
    first.fingerprint_equal = window.shadow_fingerprint_equal;
    window.witnesses.push_back(std::move(first));
  }
  if (!ask_next(core, window, kPriorityTriage)) window.confirmation = "alone";
}

void handle_confirm(Core& core, int64_t id, const ReplayFinished& replay) {
  WindowState& window = *find_window(core.s, id);
  window.confirm_pending = false;
  Witness said = witness_of(replay);
  const Witness& first = window.witnesses.front();
  if (first.suffers) {
    said.suffers = of_case(core.s, id) ? suffers_in_case(core, window, replay)
                                       : std::optional(is_diverged(replay, window.steps));
    said.measured = {};
  }
  if (first.measured.reference && !said.measured.reference)
    return confirm_failed(core, id, "it measured no loss at the window's end");
  if (!believed(core.s, said.verifier))
    return confirm_failed(core, id, said.verifier + " is not believed");
  const int priority = priority_of(core.s, id);
  note_difference(core.s, said);
  if (has_answered(window, said.verifier)) return handle_repetition(core, id, said, priority);
  window.witnesses.push_back(std::move(said));
  weigh(core, id, priority);
}

void confirm_failed(Core& core, int64_t id, const std::string& why) {
  WindowState& window = *find_window(core.s, id);
  window.confirm_pending = false;
  core.explain(
      fmt::format("{} could not be measured a second time: {}.", window_name(window), why));
  const int priority = priority_of(core.s, id);
  if (ask_next(core, window, priority)) return;
  if (window.witnesses.size() >= 2) return weigh(core, id, priority);
  settle_alone(core, id);
}

}  // namespace gnomon::decide
