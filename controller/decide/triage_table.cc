// The table of triage: rows in the order in which they are asked.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/errors.h"
#include "controller/decide/agreement.h"
#include "controller/decide/triage_rows.h"

namespace gnomon::decide {
namespace {

constexpr double kKernelShare = 0.1;  // of the offset, that two ways to compute FP8 may differ by

// Nobody's word is enough: does a second source say the same of the BF16 replay?
std::optional<TriageStep> ask_confirmation(const TriageView& v) {
  if (v.evidence.confirmation.empty()) {
    std::vector<TriageTest> tests = {{"confirm"}};
    // Beside it, what is asked next.
    if (v.evidence.trigger == "gap" && v.answer("same") == nullptr) tests.push_back({"same"});
    return TriageStep::ask(std::move(tests));
  }
  if (!v.evidence.rests_on.empty()) {
    TriageStep step = TriageStep::end(
        "broken_instrument",
        fmt::format("The evidence of many windows rests on what {} alone has measured, and other "
                    "sources do not see it. Nothing follows; its next windows are measured twice.",
                    v.evidence.rests_on));
    step.verdict->verifier = v.evidence.rests_on;
    return step;
  }
  // The run's own device is no stranger to the run: inline verification has nobody else.
  if (v.evidence.confirmation == "agreed" || v.evidence.on_trainer || v.of_step() ||
      borne_out(v.evidence.reports_percent, v.evidence.measured.d_percent.value_or(0)))
    return std::nullopt;
  return TriageStep::end(
      "broken_instrument",
      fmt::format("{} alone says so, nobody else can be asked, and the trainer's own "
                  "losses do not bear it out: the instrument is not believed. Nothing "
                  "follows. Start another verifier.",
                  v.evidence.source));
}

// Does the run's own plan do it again? And if not, whose machine is wrong?
std::optional<TriageStep> ask_hardware(const TriageView& v) {
  const TriageAnswer* same = v.answer("same");
  if (same == nullptr) {
    std::vector<TriageTest> first = {{"same"}};
    // In BF16 `same` is the BF16 replay; in a gap's window that was the alarm itself.
    if (v.of_step() && !v.evidence.in_bf16 && v.answer("bf16") == nullptr)
      first.push_back({"bf16"});
    return TriageStep::ask(std::move(first));
  }
  const bool by_bits = same->reproduction && same->reproduction->bitwise;
  const bool again = same->reproduction && same->reproduction->reproduces;
  // Where bits do not say it, another draw of the noise is no sign of a fault.
  if (!v.of_step() && !by_bits && !again && asks_chance(v)) {
    if (auto next = ask_chance(v)) return *next;
    if (parts_by_nudges(v)) return std::nullopt;
  }
  if (!same->reproduction) {
    return TriageStep::end("unexplained", v.seen_same() + ": unexplained.");
  }
  if (again) return std::nullopt;
  return ask_elsewhere(v, *same);
}

std::optional<TriageStep> ask_bf16(const TriageView& v) {
  const TriageAnswer* bf16 = v.answer(v.evidence.in_bf16 ? ReplayRole("same") : "bf16");
  if (bf16 == nullptr) return TriageStep::ask({{"bf16"}});
  if (bf16->failed || !bf16->spike) {
    return TriageStep::end("unexplained",
                           v.seen_same() + ", but BF16 could not be tried: unexplained.");
  }
  if (!v.evidence.in_bf16 && !v.suffers(*bf16->spike)) return std::nullopt;
  const std::string sentence =
      v.seen_same() + ", and BF16 suffers at the same step too: data or learning rate, not FP8.";
  if (v.evidence.in_bf16) return TriageStep::end("generic_spike", sentence);
  // A few steps in BF16 do not mend weights that FP8 has spoilt before.
  const TriageAnswer* far = v.answer("bf16_far");
  if (far == nullptr) return TriageStep::ask({{"bf16_far"}});
  const bool shared = far->failed || !far->spike || v.suffers(*far->spike);
  if (far->disputed) {
    return TriageStep::end("unexplained",
                           v.seen_same() + ", and whether BF16 suffers is disputed.");
  }
  if (!shared) return std::nullopt;
  return TriageStep::end("generic_spike", sentence).on({{far->failed ? bf16->kind : far->kind}});
}

// One replay, where spikes that BF16 shared have overdrawn the budget.
std::optional<TriageStep> ask_shared(const TriageView& v) {
  const TriageAnswer* bf16 = v.answer("bf16");
  if (bf16 == nullptr) return TriageStep::ask({{"bf16"}});
  if (bf16->failed || !bf16->spike || !v.suffers(*bf16->spike)) return std::nullopt;
  return TriageStep::end(
      "generic_spike",
      "BF16 suffers at the same step too, as at the spikes before: data or "
      "learning rate, not FP8. They have overdrawn the budget; no more is asked.");
}

// |L8 − Lfq| / |L8 − L16| at the window's beginning.
std::optional<double> offset_difference(const TriageView& v, const TriageAnswer& fake) {
  const Measurement& m = v.evidence.measured;
  if (!m.offset || !m.start_loss_plan || !fake.start_loss_plan || *m.offset == 0)
    return std::nullopt;
  return std::abs(*m.start_loss_plan - *fake.start_loss_plan) / std::abs(*m.offset);
}

std::optional<TriageStep> left_out(const TriageView& v, ReplayRole arm, const std::string& what) {
  const TriageAnswer* fake = v.answer(arm);
  if (fake == nullptr) return TriageStep::ask({{arm}});
  if (fake->failed) return std::nullopt;
  if (v.of_step()) {
    if (fake->spike && !v.suffers(*fake->spike))
      return TriageStep::end("kernel_bug",
                             v.seen_same() + fmt::format(fmt::runtime(what), "do not suffer"))
          .on({{arm}});
    return std::nullopt;
  }
  const auto share = offset_difference(v, *fake);
  const bool alone = v.rules.other_verifiers && nobody_repeats(v, {arm});
  if (share && *share > kKernelShare && !alone) {
    return TriageStep::end(
               "kernel_bug",
               v.seen_same() +
                   fmt::format(fmt::runtime(what),
                               fmt::format("give another loss at equal weights ({:.0f}% of "
                                           "what evaluating in FP8 costs)",
                                           100 * *share)))
        .on({{arm}});
  }
  if (!v.evidence.measured.d_percent || !fake->end_loss || !v.evidence.measured.reference)
    return std::nullopt;
  const double reference = *v.evidence.measured.reference;
  const double measured = *v.evidence.measured.d_percent;
  const double d = v.evidence.chance_excluded || !std::isfinite(measured)
                       ? measured
                       : std::min(measured, level_of(v.evidence));
  const double without = 100 * (*fake->end_loss - reference) / reference;
  const bool closes = !std::isfinite(d)
                          ? without <= v.rules.tolerance_percent
                          : without <= d / 2 && d - without >= kDeviations * v.rules.noise_percent;
  if (!closes) return std::nullopt;
  return TriageStep::end(
             "kernel_bug",
             v.seen_same() + fmt::format(fmt::runtime(what),
                                         fmt::format("leave a gap of {:.2f}% only", without)))
      .on({{arm}});
}

// The same FP8 values by other code: rounding, or what computes with them?
std::optional<TriageStep> ask_kernel(const TriageView& v) {
  if (v.rules.compiled) {
    if (auto next = left_out(v, "eager",
                             ", but the same plan without the compiler {}: the compiled "
                             "code, not rounding."))
      return next;
  }
  return left_out(v, "fakequant",
                  ", but the same FP8 values multiplied in BF16 {}: the FP8 kernels or their "
                  "copies of the weights, not rounding.");
}

// Equal weights evaluate otherwise than they did, and no damage: the numbers, or the kernels?
std::optional<TriageStep> ask_drift(const TriageView& v) {
  const TriageAnswer* fake = v.answer("fakequant");
  if (fake == nullptr) return TriageStep::ask({{"fakequant"}});
  const std::string seen =
      "Equal weights evaluate otherwise under the run's plan than they did, and BF16 shows no "
      "damage to them";
  const auto share = fake->failed ? std::nullopt : offset_difference(v, *fake);
  if (share && *share > kKernelShare) {
    return TriageStep::end(
               "kernel_bug",
               seen + fmt::format(", but the same FP8 values multiplied in BF16 give another "
                                  "loss ({:.0f}% of what evaluating in FP8 costs): the FP8 "
                                  "kernels or their copies of the weights, not rounding.",
                                  100 * *share))
        .on({{"fakequant"}});
  }
  return TriageStep::end("scale_drift",
                         seen +
                             ": a scale or the quantiser has drifted. The recipe is to blame, the "
                             "weights are sound.");
}

// A small gap that will not become a large one is borne.
std::optional<TriageStep> ask_growth(const TriageView& v) {
  const double level = level_of(v.evidence);
  const TriageAnswer* fork = v.answer("long_fork");
  if (fork == nullptr) return TriageStep::ask({{"long_fork"}});
  if (!fork->long_d_percent) return std::nullopt;
  const double end = carried_on(level, v.evidence.steps, *fork->long_d_percent, fork->long_steps,
                                v.rules.steps_ahead);
  if (end >= v.rules.accept_percent) return std::nullopt;
  return TriageStep::end(
             "accepted_gap",
             fmt::format(
                 "{}, but the gap of {:.3f}% in {} steps is {:.3f}% in {}: carried on it stays "
                 "at {:.3f}%, under the {:.2f}% that FP8 is worth. It is accepted.",
                 v.seen_same(), level, v.evidence.steps, *fork->long_d_percent, fork->long_steps,
                 end, v.rules.accept_percent))
      .on({{"long_fork"}});
}

// A question of triage: asks for replays, ends with a verdict, or leaves it to the rows below.
struct Row {
  bool (*applies)(const TriageView&);
  std::optional<TriageStep> (*ask)(const TriageView&);
};

bool of_all(const TriageView&) { return true; }
bool of_window(const TriageView& v) { return !v.of_step() && !v.of_audit(); }
bool of_audit(const TriageView& v) { return v.of_audit(); }
bool of_offset(const TriageView& v) { return v.of_offset(); }
bool of_step(const TriageView& v) { return v.of_step(); }
bool of_shared_spikes(const TriageView& v) { return v.rules.overdrawn && !v.evidence.in_bf16; }
bool of_step_in_fp8(const TriageView& v) { return v.of_step() && !v.evidence.in_bf16; }
// One window says nothing of growth.
bool of_small_gap(const TriageView& v) {
  return !v.of_step() && v.evidence.chance_excluded &&
         level_of(v.evidence) < v.rules.accept_percent;
}

// No replay gets any other's bits: the run is not exact, whatever its trainer says.
std::optional<TriageStep> ask_exactness(const TriageView& v) {
  if (!replays_disagree(v.evidence)) return std::nullopt;
  if (v.answer("same_again") == nullptr) return TriageStep::ask({{"same_again"}});
  if (!v.of_audit()) return std::nullopt;
  return TriageStep::end("chance",
                         "Replays of the run's own plan get other bits than the run, and than each "
                         "other: replay is not exact here, and no machine is to blame. No further "
                         "bits are audited. The trainer should say so (capabilities.exact_replay), "
                         "or use deterministic kernels.");
}

// The auditor's bits differ, and neither another verifier nor the trainer's own device bears it
// out.
std::optional<TriageStep> bear_out(const TriageView& v) {
  return TriageStep::end("chance", v.seen_same() +
                                       ", but nobody else bears that out, and the loss shows no "
                                       "damage: nothing follows.");
}

// Where one verifier's nudged replays alone exclude chance, they are done again elsewhere, by one
// that is shown to compute as the run does. triage() asks for that, or marks what is disputed.
std::optional<TriageStep> bear_out_pairs(const TriageView& v) {
  const std::vector<TriageTest> pairs = ruled_out_chance(v);
  if (pairs.empty()) return std::nullopt;
  if (v.rules.other_verifiers && v.answer("same_elsewhere") == nullptr)
    return TriageStep::ask({{"same_elsewhere"}});
  const auto by_nobody = [&](const TriageTest& test) { return nobody_repeats(v, test); };
  // Two sources bear D out; what pairs take from it is noise.
  const double least = v.rules.one_window_percent + kDeviations * v.rules.noise_percent;
  const bool near = v.evidence.measured.d_percent.value_or(HUGE_VAL) <= least;
  if (near && v.rules.other_verifiers && std::ranges::any_of(pairs, by_nobody)) {
    return TriageStep::end(
        "chance",
        v.seen_same() +
            ", and so do replays whose weights were nudged by a rounding error, but one "
            "verifier alone says so, and no other computes as the run does: only further windows "
            "can tell. Start another verifier whose fingerprint is the run's.");
  }
  TriageStep open;
  open.rests_on = pairs;
  const SecondOpinion opinion = ask_second_sources(v, open);
  return opinion.next || opinion.disputed ? std::optional(open) : std::nullopt;
}

std::optional<TriageStep> blame_fp8(const TriageView& v) {
  return TriageStep::end("fp8_numerics",
                         v.seen_same() + ", and BF16 does not suffer: FP8 is to blame.");
}

// The order of docs/triage.md. To add a rule, add a row here and a case to
// tests/decide/triage_table_test.cc.
constexpr Row kRows[] = {
    {of_window, ask_confirmation},       // nobody's word is enough
    {of_shared_spikes, ask_shared},      // one more of them?
    {of_offset, ask_drift},              // equal weights evaluate otherwise, and no damage
    {of_all, ask_exactness},             // do replays agree with each other?
    {of_all, ask_hardware},              // does the run's own plan do it again?
    {of_audit, bear_out},                // nobody bears the auditor out
    {of_step, ask_bf16},                 // does BF16 suffer too?
    {of_step_in_fp8, ask_confirmation},  // it does not, says one
    {asks_chance, ask_chance},           // do nudged replays part as the plain ones did?
    {asks_chance, bear_out_pairs},       // is that one verifier's word?
    {of_all, ask_kernel},                // the same FP8 values by other code
    {of_small_gap, ask_growth},          // a small gap that stays small is borne
    {of_all, blame_fp8},
};

}  // namespace

const TriageAnswer* TriageView::answer(ReplayRole kind, int64_t seed) const {
  for (const TriageAnswer& known : evidence.answers) {
    if (known.kind == kind && known.seed == seed) return &known;
  }
  return nullptr;
}

bool TriageView::suffers(const SpikeComparison& seen) const {
  return seen.non_finite || (evidence.finding->kind != "non_finite" && seen.spikes);
}

const TriageAnswer* TriageView::plain() const {
  const TriageAnswer* same = answer("same");
  for (const ReplayRole other : {ReplayRole("same_elsewhere"), ReplayRole("same_on_trainer")}) {
    if (!reproduces(same) && reproduces(answer(other))) same = answer(other);
  }
  return same;
}

std::string TriageView::seen_same() const {
  const TriageAnswer* same = plain();
  return same != nullptr && same->reproduction
             ? same->reproduction->sentence
             : std::string("No verifier could replay the window under the same plan");
}

double carried_on(double level, int64_t steps, double later, int64_t later_steps, int64_t ahead) {
  if (later <= 0) return std::max(level, 0.0);
  double exponent = 1;
  if (level > 0 && later_steps > steps && steps > 0) {
    exponent = std::log(later / level) /
               std::log(static_cast<double>(later_steps) / static_cast<double>(steps));
    exponent = std::clamp(exponent, 0.0, 1.0);
  }
  const double ratio =
      1 + static_cast<double>(ahead) / static_cast<double>(std::max<int64_t>(later_steps, 1));
  return std::max(level, later * std::pow(ratio, exponent));
}

bool replays_disagree(const TriageEvidence& evidence) {
  std::vector<std::string> ends;
  for (const TriageAnswer& answer : evidence.answers) {
    if (!answer.reproduction || !answer.reproduction->bitwise) continue;
    if (answer.reproduction->reproduces) return false;
    if (answer.end_hash.empty()) continue;
    if (std::ranges::find(ends, answer.end_hash) != ends.end()) return false;
    ends.push_back(answer.end_hash);
  }
  return ends.size() >= 2;
}

namespace {

TriageEvidence without_bits(TriageEvidence evidence) {
  for (TriageAnswer& answer : evidence.answers) {
    if (answer.by_losses) answer.reproduction = answer.by_losses;
  }
  return evidence;
}

// Nobody can say who is wrong: the answer counts for nothing. But of nudged replays the trainer's
// own device, which the run computes on, stands against a verifier.
void settle_disputed(TriageEvidence& evidence, const TriageTest& test) {
  const auto by_trainer = std::ranges::find_if(evidence.seconds, [&](const TriageAnswer& second) {
    return second.kind == test.kind && second.seed == test.seed && second.on_trainer;
  });
  const bool stands = is_nudged(test.kind) && by_trainer != evidence.seconds.end();
  for (TriageAnswer& answer : evidence.answers) {
    if (answer.kind != test.kind || answer.seed != test.seed) continue;
    TriageAnswer disputed;
    disputed.kind = answer.kind;
    disputed.seed = answer.seed;
    disputed.failed = disputed.disputed = true;
    answer = stands ? *by_trainer : std::move(disputed);
  }
}

TriageStep ask_rows(const TriageView& view) {
  for (const Row& row : kRows) {
    if (!row.applies(view)) continue;
    if (auto step = row.ask(view)) return std::move(*step);
  }
  GNOMON_ASSERT(false);  // the last row ends with a verdict
}

}  // namespace

bool spoilt_before(const TriageEvidence& evidence) {
  return std::ranges::any_of(evidence.answers, [](const TriageAnswer& answer) {
    return answer.kind == "bf16_far" && !answer.failed;
  });
}

TriageStep triage(const TriageEvidence& evidence, const TriageRules& rules) {
  const bool asked = TriageView{evidence, rules}.answer("same_again") != nullptr;
  const bool inexact = asked && evidence.trigger != "audit" && replays_disagree(evidence);
  TriageEvidence known = inexact ? without_bits(evidence) : evidence;
  weigh_seconds(known, rules);
  std::string disputes;
  for (;;) {
    const TriageView view{known, rules};
    TriageStep step = ask_rows(view);
    const SecondOpinion opinion = ask_second_sources(view, step);
    if (opinion.next) return *opinion.next;
    if (!opinion.disputed) {
      if (step.verdict) step.verdict->sentence += disputes;
      return step;
    }
    settle_disputed(known, *opinion.disputed);
    disputes += opinion.sentence;
  }
}

}  // namespace gnomon::decide
