// The table of triage: rows in the order in which they are asked.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "controller/decide/agreement.h"
#include "controller/decide/triage.h"

namespace gnomon::decide {
namespace {

constexpr double kKernelShare = 0.1;  // of the offset, that two ways to compute FP8 may differ by
constexpr double kKernelNoise = 3;    // deviations that a gap must lose without the FP8 kernels

// A loader that stands still: which steps took the same tokens.
std::string repeated_batch(const std::vector<OtherBatch>& batches) {
  for (size_t i = 0; i + 1 < batches.size(); ++i) {
    const std::string& hash = batches[i].run;
    if (batches[i + 1].run != hash) continue;
    size_t last = i + 1;
    while (last + 1 < batches.size() && batches[last + 1].run == hash) ++last;
    return fmt::format(" (the same batch, {}, in each of steps {}–{})", hash, batches[i].step,
                       batches[last].step);
  }
  return "";
}

// The evidence as the rows read it.
class Table {
 public:
  Table(const TriageEvidence& evidence, const TriageRules& rules)
      : evidence_(evidence), rules_(rules) {}

  TriageStep step() const {
    if (!of_step()) {
      if (auto next = confirmed()) return *next;
    }
    if (evidence_.trigger == "offset") return drift();
    if (auto next = hardware()) return *next;
    if (auto next = shared_with_bf16()) return *next;
    if (of_step() && !evidence_.in_bf16) {
      if (auto next = confirmed()) return *next;
    }
    if (auto next = chance()) return *next;
    if (auto next = kernel()) return *next;
    if (auto next = growth()) return *next;
    return verdict("fp8_numerics", seen_same() + ", and BF16 does not suffer: FP8 is to blame.");
  }

 private:
  bool of_step() const { return evidence_.finding.has_value(); }

  const TriageAnswer* answer(ReplayRole kind, int64_t seed = 0) const {
    for (const TriageAnswer& known : evidence_.answers) {
      if (known.kind == kind && known.seed == seed) return &known;
    }
    return nullptr;
  }

  static TriageStep ask(std::vector<TriageTest> tests) { return {std::move(tests), std::nullopt}; }

  static TriageStep verdict(VerdictName name, std::string sentence) {
    TriageStep step;
    step.verdict = Verdict{name, std::move(sentence), "", std::nullopt};
    return step;
  }

  std::string seen_same() const {
    const TriageAnswer* same = answer("same");
    const TriageAnswer* second = answer("same_elsewhere");
    if (!reproduces(same) && reproduces(second)) same = second;
    return same != nullptr && same->reproduction
               ? same->reproduction->sentence
               : std::string("No verifier could replay the window under the same plan");
  }

  // ---- Nobody's word is enough: does a second source say the same of the BF16 replay?
  std::optional<TriageStep> confirmed() const {
    if (evidence_.confirmation.empty()) {
      std::vector<TriageTest> tests = {{"confirm"}};
      // Beside it, what is asked next.
      if (evidence_.trigger == "gap" && answer("same") == nullptr) tests.push_back({"same"});
      return ask(std::move(tests));
    }
    if (!evidence_.rests_on.empty()) {
      TriageStep step = verdict(
          "broken_instrument",
          fmt::format(
              "The evidence of many windows rests on what {} alone has measured, and other "
              "sources do not see it. Nothing follows; its next windows are measured twice.",
              evidence_.rests_on));
      step.verdict->verifier = evidence_.rests_on;
      return step;
    }
    // The run's own device is no stranger to the run: inline verification has nobody else.
    if (evidence_.confirmation == "agreed" || evidence_.on_trainer || of_step() ||
        borne_out(evidence_.reports_percent, evidence_.measured.d_percent.value_or(0)))
      return std::nullopt;
    return verdict("broken_instrument",
                   fmt::format("{} alone says so, nobody else can be asked, and the trainer's own "
                               "losses do not bear it out: the instrument is not believed. Nothing "
                               "follows. Start another verifier.",
                               evidence_.source));
  }

  // ---- Does the run's own plan do it again? And if not, whose machine is wrong?
  std::optional<TriageStep> hardware() const {
    const TriageAnswer* same = answer("same");
    if (same == nullptr) {
      std::vector<TriageTest> first = {{"same"}};
      // In BF16 `same` is the BF16 replay; in a gap's window that was the alarm itself.
      if (of_step() && !evidence_.in_bf16 && answer("bf16") == nullptr) first.push_back({"bf16"});
      return ask(std::move(first));
    }
    const bool by_bits = same->reproduction && same->reproduction->bitwise;
    const bool again = same->reproduction && same->reproduction->reproduces;
    // Where bits do not say it, another draw of the noise is no sign of a fault.
    if (!of_step() && !by_bits && !again && asks_chance()) {
      if (auto next = chance()) return *next;
      if (parts_by_nudges()) return std::nullopt;
    }
    if (!same->reproduction) {
      return verdict("unexplained", seen_same() + ": unexplained.");
    }
    if (again) return std::nullopt;
    return differs(*same);
  }

  // What another verifier than the first one got under the run's own plan; null: there is none.
  const TriageAnswer* seen_elsewhere(const TriageAnswer& same) const {
    const TriageAnswer* second = answer("same_elsewhere");
    const bool other =
        second != nullptr && second->reproduction && second->verifier != same.verifier;
    return other ? second : nullptr;
  }

  static bool reproduces(const TriageAnswer* known) {
    return known != nullptr && known->reproduction && known->reproduction->reproduces;
  }

  // One verifier says that the run's own plan does not do it again. Another one is asked too.
  std::optional<TriageStep> differs(const TriageAnswer& same) const {
    if (rules_.other_verifiers && answer("same_elsewhere") == nullptr)
      return ask({{"same_elsewhere"}});
    const TriageAnswer* second = seen_elsewhere(same);
    if (reproduces(second)) return contradicted(same, *second);
    // Bits say more than losses do.
    const bool by_second =
        second != nullptr && second->reproduction->bitwise && !same.reproduction->bitwise;
    return machine_or_data(by_second ? *second : same, by_second ? nullptr : second);
  }

  // Nobody gets what the run got. `second`: who has looked as well, by bits or by losses.
  TriageStep machine_or_data(const TriageAnswer& same, const TriageAnswer* second) const {
    const Reproduction& first = *same.reproduction;
    if (!first.bitwise) {
      // What ranks send is in no replay by a single process.
      const std::string or_wire =
          rules_.sends_low ? " Or it is what ranks send in low precision, which a verifier of one "
                             "process does not: start one of as many ranks as the run has."
                           : "";
      return fault(
          "transient_fault",
          first.sentence + ": a transient fault of hardware or software, not FP8." + or_wire,
          first);
    }
    if (second != nullptr && second->reproduction->bitwise &&
        second->reproduction->other_batch != first.other_batch)
      return tokens_disputed(same, *second);
    if (first.other_batch) {
      return fault("data_mismatch",
                   fmt::format("{}, where the run took other tokens than the data's order gives{}: "
                               "the data, not FP8.",
                               first.sentence, repeated_batch(first.other_batches)),
                   first);
    }
    return trainer_differs(first);
  }

  // Which tokens the run took the trainer cannot say for itself: its loader is what is suspected.
  TriageStep tokens_disputed(const TriageAnswer& same, const TriageAnswer& second) const {
    const bool said = same.reproduction->other_batch;
    return verdict(
        of_step() ? VerdictName("unexplained") : "broken_instrument",
        fmt::format("{} says that the run took other tokens than the data's order gives, "
                    "{} that it did not. One of them is wrong, and nobody can say which. "
                    "Start another verifier.",
                    said ? same.verifier : second.verifier,
                    said ? second.verifier : same.verifier));
  }

  // Another verifier gets what the run got. By bits the second and the run are two against the
  // first, unless the trainer itself does not get them either. Nothing where what is asked next
  // will tell.
  std::optional<TriageStep> contradicted(const TriageAnswer& same,
                                         const TriageAnswer& second) const {
    const Reproduction& first = *same.reproduction;
    // Losses of two that differ are as much for it as against it.
    if (!first.bitwise) return std::nullopt;
    const bool by_bits = second.reproduction->bitwise;
    if (first.other_batch && by_bits) return tokens_disputed(same, second);
    const TriageAnswer* own = answer("same_on_trainer");
    if (rules_.trainer_replays && own == nullptr) return ask({{"same_on_trainer"}});
    const bool trainer_knows = own != nullptr && own->reproduction && own->reproduction->bitwise;
    if (trainer_knows && !reproduces(own)) return trainer_differs(first);
    if (!by_bits && trainer_knows) return std::nullopt;
    if (!by_bits) {
      return verdict(
          of_step() ? VerdictName("unexplained") : "broken_instrument",
          fmt::format("{}, says {}; {} sees it again by its losses, and its bits cannot "
                      "be compared. Nobody can say who is wrong. Start another verifier.",
                      first.sentence, same.verifier, second.verifier));
    }
    TriageStep result = fault("verifier_fault",
                              fmt::format("{}, but another verifier gets the run's bits: {} "
                                          "computes wrongly, not the run.",
                                          first.sentence, same.verifier),
                              first);
    result.verdict->verifier = same.verifier;
    return result;
  }

  // The run's bits are wrong. Does the trainer's device do it again?
  TriageStep trainer_differs(const Reproduction& first) const {
    const TriageAnswer* own = rules_.trainer_replays ? answer("same_on_trainer") : nullptr;
    if (rules_.trainer_replays && own == nullptr) return ask({{"same_on_trainer"}});
    if (reproduces(own) && own->reproduction->bitwise) {
      return fault("persistent_fault",
                   first.sentence +
                       ", but the trainer's own device does it again: a persistent fault of that "
                       "host, not FP8.",
                   first);
    }
    if (rules_.transients_spent) {
      const char* time = rules_.earlier_transients == 0   ? "first"
                         : rules_.earlier_transients == 1 ? "second"
                                                          : "next";
      return fault("persistent_fault",
                   fmt::format("{}, for the {} time on this host, and the policy takes no more for "
                               "transient: a persistent fault of it, not FP8.",
                               first.sentence, time),
                   first);
    }
    return fault("transient_fault",
                 first.sentence + ": a transient fault of hardware or software, not FP8.", first);
  }

  static TriageStep fault(VerdictName name, std::string sentence, const Reproduction& seen) {
    TriageStep step = verdict(name, std::move(sentence));
    step.verdict->since_step = seen.first_mismatch_step;
    return step;
  }

  // ---- A spike: does BF16 spike too?
  static bool suffers(const SpikeComparison& seen, const SpikeFinding& finding) {
    return finding.kind == "non_finite" ? seen.non_finite : seen.non_finite || seen.spikes;
  }

  std::optional<TriageStep> shared_with_bf16() const {
    if (!of_step()) return std::nullopt;
    const TriageAnswer* bf16 = answer(evidence_.in_bf16 ? ReplayRole("same") : "bf16");
    if (bf16 == nullptr) return ask({{"bf16"}});
    if (bf16->failed || !bf16->spike) {
      return verdict("unexplained", seen_same() + ", but BF16 could not be tried: unexplained.");
    }
    if (!evidence_.in_bf16 && !suffers(*bf16->spike, *evidence_.finding)) return std::nullopt;
    const std::string sentence =
        seen_same() + ", and BF16 suffers at the same step too: data or learning rate, not FP8.";
    if (evidence_.in_bf16) return verdict("generic_spike", sentence);
    // A few steps in BF16 do not mend weights that FP8 has spoilt before.
    const TriageAnswer* far = answer("bf16_far");
    if (far == nullptr) return ask({{"bf16_far"}});
    const bool shared = far->failed || !far->spike || suffers(*far->spike, *evidence_.finding);
    if (shared) return verdict("generic_spike", sentence);
    return std::nullopt;
  }

  // ---- Chance: do nudged replays of both arms part as the plain ones did?
  bool asks_chance() const { return !evidence_.chance_excluded && rules_.pairs > 0; }

  std::optional<TriageStep> chance() const {
    if (!asks_chance()) return std::nullopt;
    return of_step() ? chance_of_spike() : chance_of_gap();
  }

  struct Nudged {
    std::vector<const TriageAnswer*> fp8;
    std::vector<const TriageAnswer*> bf16;
    std::vector<TriageTest> open;  // still to be answered, pair by pair
  };

  Nudged nudged() const {
    Nudged result;
    for (int64_t seed = 1; seed <= rules_.pairs; ++seed) {
      for (const ReplayRole kind : {ReplayRole("fp8_nudged"), ReplayRole("bf16_nudged")}) {
        const TriageAnswer* known = answer(kind, seed);
        if (known == nullptr) {
          result.open.push_back({kind, seed});
        } else if (!known->failed) {
          (kind == "fp8_nudged" ? result.fp8 : result.bf16).push_back(known);
        }
      }
    }
    return result;
  }

  // The run's plan does it again to the bit, as one verifier says, and no nudged replay does:
  // chance, or the run's bits are wrong and that verifier only repeats them. Another one is asked
  // first.
  std::optional<TriageStep> echoed() const {
    const TriageAnswer* same = answer("same");
    if (!reproduces(same) || !same->reproduction->bitwise || !rules_.other_verifiers)
      return std::nullopt;
    if (answer("same_elsewhere") == nullptr) return ask({{"same_elsewhere"}});
    const TriageAnswer* second = seen_elsewhere(*same);
    if (second == nullptr || !second->reproduction->bitwise || reproduces(second))
      return std::nullopt;
    return contradicted(*second, *same);
  }

  TriageStep chance_verdict(const std::string& why) const {
    return verdict(of_step() ? VerdictName("generic_spike") : VerdictName("chance"),
                   fmt::format("{}, but {}: chance, not FP8.", seen_same(), why));
  }

  std::optional<TriageStep> chance_of_spike() const {
    const SpikeFinding& finding = *evidence_.finding;
    const Nudged seen = nudged();
    int64_t fp8 = 1;  // the run itself, reproduced
    int64_t bf16 = 0;
    for (const TriageAnswer* known : seen.fp8)
      fp8 += known->spike && suffers(*known->spike, finding) ? 1 : 0;
    for (const TriageAnswer* known : seen.bf16)
      bf16 += known->spike && suffers(*known->spike, finding) ? 1 : 0;
    if (bf16 > 0) {
      return chance_verdict("BF16 suffers too when its weights are nudged by a rounding error");
    }
    if (!seen.open.empty()) return ask(seen.open);
    const int64_t fp8_all = 1 + static_cast<int64_t>(seen.fp8.size());
    const int64_t bf16_all = 1 + static_cast<int64_t>(seen.bf16.size());
    // The best that so many replays can show, and no more than one FP8 replay may fail to.
    const double p = fisher_p(fp8, fp8_all, bf16, bf16_all);
    const double needed = fisher_p(fp8_all - (fp8_all > 4 ? 1 : 0), fp8_all, 0, bf16_all);
    if (p <= needed * (1 + 1e-9) || ends_part(seen)) return std::nullopt;
    if (auto next = echoed()) return *next;
    return chance_verdict(
        fmt::format("only {} of {} replays under the run's plan and {} of {} in "
                    "BF16 suffer (Fisher's exact test: p = {:.2g})",
                    fp8, fp8_all, bf16, bf16_all, p));
  }

  // FP8 may spoil the weights in every replay and spike in some: all replays under the run's plan
  // end higher than all in BF16. Three pairs part so by chance one time in twenty.
  bool ends_part(const Nudged& seen) const {
    constexpr size_t kPairs = 3;
    const auto ended = [](const TriageAnswer* known) { return known->end_loss.has_value(); };
    if (seen.fp8.size() < kPairs || seen.bf16.size() < kPairs) return false;
    if (!std::ranges::all_of(seen.fp8, ended) || !std::ranges::all_of(seen.bf16, ended))
      return false;
    const Ends ends = ends_of(seen);
    return ends.bf16_finite && ends.lowest_fp8 > allowed(ends);
  }

  // Where the nudged replays ended; of a gap also its BF16 replay.
  struct Ends {
    double lowest_fp8, highest_fp8, lowest_bf16, highest_bf16;
    bool bf16_finite = true;
  };

  Ends ends_of(const Nudged& seen) const {
    const std::optional<double>& reference = evidence_.measured.reference;
    Ends ends{HUGE_VAL, -HUGE_VAL, reference.value_or(HUGE_VAL), reference.value_or(-HUGE_VAL)};
    const auto add_fp8 = [&](const TriageAnswer* known) {
      if (known == nullptr || !known->end_loss) return;
      ends.lowest_fp8 = std::min(ends.lowest_fp8, *known->end_loss);
      ends.highest_fp8 = std::max(ends.highest_fp8, *known->end_loss);
    };
    for (const TriageAnswer* known : seen.fp8) add_fp8(known);
    // With other bits it is a nudged replay as well.
    const TriageAnswer* same = answer("same");
    if (same != nullptr && same->reproduction && !same->reproduction->bitwise) add_fp8(same);
    for (const TriageAnswer* known : seen.bf16) {
      if (!known->end_loss) continue;
      ends.bf16_finite = ends.bf16_finite && std::isfinite(*known->end_loss);
      ends.lowest_bf16 = std::min(ends.lowest_bf16, *known->end_loss);
      ends.highest_bf16 = std::max(ends.highest_bf16, *known->end_loss);
    }
    return ends;
  }

  double allowed(const Ends& ends) const {
    return ends.highest_bf16 * (1 + rules_.tolerance_percent / 100);
  }

  // Both arms were replayed, and FP8 ended higher each time.
  bool parts_by_nudges() const {
    if (!evidence_.measured.gap || !evidence_.measured.reference) return false;
    const Nudged seen = nudged();
    if (seen.fp8.empty() || seen.bf16.empty()) return false;
    return ends_of(seen).lowest_fp8 > allowed(ends_of(seen));
  }

  // Healthy ends lie within this of each other; the run's own end lies far beyond all of them.
  bool stands_alone(const Ends& ends) const {
    constexpr double kRanges = 2;
    const double highest = std::max(ends.highest_fp8, ends.highest_bf16);
    const double range = highest - std::min(ends.lowest_fp8, ends.lowest_bf16);
    return *evidence_.measured.reference + *evidence_.measured.gap > highest + kRanges * range;
  }

  std::optional<TriageStep> chance_of_gap() const {
    if (!evidence_.measured.gap || !evidence_.measured.reference) return std::nullopt;
    const Nudged seen = nudged();
    const Ends ends = ends_of(seen);
    if (!ends.bf16_finite) {
      return chance_verdict("a BF16 replay diverges too when its weights are nudged");
    }
    const double own = *evidence_.measured.reference + *evidence_.measured.gap;
    if (std::min(own, ends.lowest_fp8) <= allowed(ends)) {
      const TriageAnswer* same = answer("same");
      const bool by_bits = same != nullptr && same->reproduction && same->reproduction->bitwise;
      if (!by_bits && stands_alone(ends)) {
        if (!seen.open.empty()) return ask(seen.open);
        return std::nullopt;
      }
      if (stands_alone(ends)) {
        if (auto next = echoed()) return *next;
      }
      return chance_verdict(fmt::format(
          "replays whose weights were nudged by a rounding error meet within the tolerance: the "
          "best under the run's plan ends at {:.4f}, the worst in BF16 at {:.4f}",
          std::min(own, ends.lowest_fp8), ends.highest_bf16));
    }
    if (!seen.open.empty()) return ask(seen.open);
    const bool nobody = seen.fp8.empty() || seen.bf16.empty();
    if (nobody && *evidence_.measured.d_percent <= rules_.ceiling_percent) {
      return chance_verdict(
          "nobody could replay it from nudged weights, and one window alone is "
          "not enough");
    }
    return std::nullopt;
  }

  // ---- The same FP8 values by other code: rounding, or what computes with them?
  std::optional<TriageStep> kernel() const {
    if (rules_.compiled) {
      if (auto next = left_out("eager",
                               ", but the same plan without the compiler {}: the compiled "
                               "code, not rounding."))
        return next;
    }
    return left_out("fakequant",
                    ", but the same FP8 values multiplied in BF16 {}: the FP8 kernels or their "
                    "copies of the weights, not rounding.");
  }

  std::optional<TriageStep> left_out(ReplayRole arm, const std::string& what) const {
    const TriageAnswer* fake = answer(arm);
    if (fake == nullptr) return ask({{arm}});
    if (fake->failed) return std::nullopt;
    if (of_step()) {
      if (fake->spike && !suffers(*fake->spike, *evidence_.finding))
        return verdict("kernel_bug",
                       seen_same() + fmt::format(fmt::runtime(what), "do not suffer"));
      return std::nullopt;
    }
    if (const auto share = offset_difference(*fake); share && *share > kKernelShare) {
      return verdict(
          "kernel_bug",
          seen_same() + fmt::format(fmt::runtime(what),
                                    fmt::format("give another loss at equal weights ({:.0f}% of "
                                                "what evaluating in FP8 costs)",
                                                100 * *share)));
    }
    if (!evidence_.measured.d_percent || !fake->end_loss || !evidence_.measured.reference)
      return std::nullopt;
    const double reference = *evidence_.measured.reference;
    const double measured = *evidence_.measured.d_percent;
    const double d = evidence_.chance_excluded || !std::isfinite(measured)
                         ? measured
                         : std::min(measured, level_of(evidence_));
    const double without = 100 * (*fake->end_loss - reference) / reference;
    const bool closes =
        !std::isfinite(d) ? without <= rules_.tolerance_percent
                          : without <= d / 2 && d - without >= kKernelNoise * rules_.noise_percent;
    if (!closes) return std::nullopt;
    return verdict("kernel_bug",
                   seen_same() + fmt::format(fmt::runtime(what),
                                             fmt::format("leave a gap of {:.2f}% only", without)));
  }

  // ---- Equal weights lose more than they did, and no damage: the numbers, or the kernels?
  TriageStep drift() const {
    const TriageAnswer* fake = answer("fakequant");
    if (fake == nullptr) return ask({{"fakequant"}});
    const std::string seen =
        "Equal weights lose more under the run's plan than they did, and BF16 shows no damage to "
        "them";
    const auto share = fake->failed ? std::nullopt : offset_difference(*fake);
    if (share && *share > kKernelShare) {
      return verdict("kernel_bug",
                     seen + fmt::format(", but the same FP8 values multiplied in BF16 give another "
                                        "loss ({:.0f}% of what evaluating in FP8 costs): the FP8 "
                                        "kernels or their copies of the weights, not rounding.",
                                        100 * *share));
    }
    return verdict("scale_drift",
                   seen +
                       ": a scale or the quantiser has drifted. The recipe is to blame, the "
                       "weights are sound.");
  }

  // ---- A small gap that will not become a large one is borne.
  std::optional<TriageStep> growth() const {
    const double level = level_of(evidence_);
    // One window says nothing of growth.
    if (of_step() || !evidence_.chance_excluded || level >= rules_.accept_percent)
      return std::nullopt;
    const TriageAnswer* fork = answer("long_fork");
    if (fork == nullptr) return ask({{"long_fork"}});
    if (!fork->long_d_percent) return std::nullopt;
    const double end = carried_on(level, evidence_.steps, *fork->long_d_percent, fork->long_steps,
                                  rules_.steps_ahead);
    if (end >= rules_.accept_percent) return std::nullopt;
    return verdict(
        "accepted_gap",
        fmt::format("{}, but the gap of {:.3f}% in {} steps is {:.3f}% in {}: carried on it stays "
                    "at {:.3f}%, under the {:.2f}% that FP8 is worth. It is accepted.",
                    seen_same(), level, evidence_.steps, *fork->long_d_percent, fork->long_steps,
                    end, rules_.accept_percent));
  }

  // |L8 − Lfq| / |L8 − L16| at the window's beginning.
  std::optional<double> offset_difference(const TriageAnswer& fake) const {
    const Measurement& m = evidence_.measured;
    if (!m.offset || !m.start_loss_plan || !fake.start_loss_plan || *m.offset == 0)
      return std::nullopt;
    return std::abs(*m.start_loss_plan - *fake.start_loss_plan) / std::abs(*m.offset);
  }

  const TriageEvidence& evidence_;
  const TriageRules& rules_;
};

}  // namespace

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

double level_of(const TriageEvidence& evidence) {
  if (evidence.chance_excluded) return evidence.level_percent;
  double fp8 = 0, bf16 = 0;
  int64_t fp8_ends = 0, bf16_ends = 0;
  for (const TriageAnswer& answer : evidence.answers) {
    if (!answer.end_loss || !std::isfinite(*answer.end_loss)) continue;
    if (answer.kind == "fp8_nudged") {
      fp8 += *answer.end_loss;
      ++fp8_ends;
    } else if (answer.kind == "bf16_nudged") {
      bf16 += *answer.end_loss;
      ++bf16_ends;
    }
  }
  if (fp8_ends < 2 || bf16_ends < 2) return evidence.level_percent;
  const double reference = bf16 / static_cast<double>(bf16_ends);
  return 100 * (fp8 / static_cast<double>(fp8_ends) - reference) / reference;
}

bool spoilt_before(const TriageEvidence& evidence) {
  return std::ranges::any_of(evidence.answers, [](const TriageAnswer& answer) {
    return answer.kind == "bf16_far" && !answer.failed;
  });
}

TriageStep triage(const TriageEvidence& evidence, const TriageRules& rules) {
  return Table(evidence, rules).step();
}

}  // namespace gnomon::decide
