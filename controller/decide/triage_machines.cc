// Rows of triage: whose machine, or whose data, is wrong?
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "controller/decide/triage_rows.h"

namespace gnomon::decide {
namespace {

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

TriageStep fault(VerdictName name, std::string sentence, const Reproduction& seen) {
  TriageStep step = TriageStep::end(name, std::move(sentence));
  step.verdict->since_step = seen.first_mismatch_step;
  return step;
}

// What another verifier than the first one got under the run's own plan; null: there is none.
const TriageAnswer* seen_elsewhere(const TriageView& v, const TriageAnswer& same) {
  const TriageAnswer* second = v.answer("same_elsewhere");
  const bool other = second != nullptr && second->reproduction && second->verifier != same.verifier;
  return other ? second : nullptr;
}

// One says that the run took other tokens, and the other one has its bits. Which tokens it took the
// trainer cannot say for itself: its loader is what is suspected.
TriageStep tokens_disputed(const TriageView& v, const TriageAnswer& same,
                           const TriageAnswer& second) {
  const bool said = same.reproduction->other_batch;
  return TriageStep::end(
      v.of_step() ? VerdictName("unexplained") : "broken_instrument",
      fmt::format("{} says that the run took other tokens than the data's order gives, "
                  "{} that it did not. One of them is wrong, and nobody can say which. "
                  "Start another verifier.",
                  said ? same.verifier : second.verifier, said ? second.verifier : same.verifier));
}

// Two verifiers at least get other bits than the run.
bool two_differ(const TriageView& v) {
  std::string first;
  for (const TriageAnswer& known : v.evidence.answers) {
    const auto& seen = known.reproduction;
    if (known.on_trainer || !seen || !seen->bitwise || seen->reproduces) continue;
    if (!first.empty() && first != known.verifier) return true;
    first = known.verifier;
  }
  return false;
}

// The run's bits are wrong. Does the trainer's device do it again?
TriageStep trainer_differs(const TriageView& v, const Reproduction& first) {
  const TriageAnswer* own = v.rules.trainer_replays ? v.answer("same_on_trainer") : nullptr;
  if (v.rules.trainer_replays && own == nullptr) return TriageStep::ask({{"same_on_trainer"}});
  if (TriageView::reproduces(own) && own->reproduction->bitwise) {
    // One verifier's word stops no run whose loss shows no damage.
    if (v.of_audit() && !two_differ(v)) {
      return TriageStep::end("broken_instrument",
                             first.sentence +
                                 ", says one verifier alone; the trainer's own device gets the "
                                 "run's bits. Nobody else can say who is wrong. Start another "
                                 "verifier.");
    }
    return fault("persistent_fault",
                 first.sentence +
                     ", but the trainer's own device does it again: a persistent fault of that "
                     "host, not FP8.",
                 first);
  }
  if (v.rules.transients_spent) {
    const char* time = v.rules.earlier_transients == 0   ? "first"
                       : v.rules.earlier_transients == 1 ? "second"
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

// Two at least find that the run's bits are wrong: its tokens, or its machine?
TriageStep run_is_wrong(const TriageView& v, const Reproduction& first) {
  if (!first.other_batch) return trainer_differs(v, first);
  return fault("data_mismatch",
               fmt::format("{}, where the run took other tokens than the data's order gives{}: "
                           "the data, not FP8.",
                           first.sentence, repeated_batch(first.other_batches)),
               first);
}

// Nobody gets what the run got. `second`: who has looked as well, by bits or by losses.
// Nothing where the trainer's own device gets it: machines of another kind may lack the fault.
std::optional<TriageStep> machine_or_data(const TriageView& v, const TriageAnswer& same,
                                          const TriageAnswer* second) {
  const Reproduction& first = *same.reproduction;
  if (!first.bitwise) {
    const TriageAnswer* own = v.answer("same_on_trainer");
    if (v.rules.trainer_replays && own == nullptr) return TriageStep::ask({{"same_on_trainer"}});
    if (TriageView::reproduces(own)) return std::nullopt;
    // What ranks send is in no replay by a single process.
    const std::string or_wire =
        v.rules.sends_low ? " Or it is what ranks send in low precision, which a verifier of one "
                            "process does not: start one of as many ranks as the run has."
                          : "";
    return fault("transient_fault",
                 first.sentence + ": a transient fault of hardware or software, not FP8." + or_wire,
                 first);
  }
  // Which tokens it took the trainer cannot say; and one verifier's word takes back no run whose
  // loss shows no damage.
  if (first.other_batch && v.of_audit() && !two_differ(v)) return std::nullopt;
  // The run goes back before either.
  if (second != nullptr && second->reproduction->bitwise &&
      second->reproduction->other_batch != first.other_batch) {
    return fault("data_mismatch",
                 fmt::format("{}. {} says that the run took other tokens than the data's order "
                             "gives, {} that it did not: the data or a machine, not FP8.",
                             first.sentence, first.other_batch ? same.verifier : second->verifier,
                             first.other_batch ? second->verifier : same.verifier),
                 first);
  }
  return run_is_wrong(v, first);
}

// One verifier gets the run's bits and another one does not: the first is wrong, or the second only
// repeats what the run said. A third one tells. Where there is none, the first is asked again: who
// is exact as a rule and repeats its other bits may be right.
TriageStep two_by_bits(const TriageView& v, const TriageAnswer& differs,
                       const TriageAnswer& as_the_run) {
  const Reproduction& first = *differs.reproduction;
  const auto same_bits = [&](const TriageAnswer* known) {
    return known != nullptr && known->reproduction && known->reproduction->bitwise &&
           !known->reproduction->reproduces && !known->end_hash.empty() &&
           known->end_hash == differs.end_hash;
  };
  const TriageAnswer* third = v.answer("same_third");
  if (third == nullptr && v.rules.third_verifier) return TriageStep::ask({{"same_third"}});
  // Where nobody else takes it, one of the two may do it again.
  if (third != nullptr &&
      (third->verifier == differs.verifier || third->verifier == as_the_run.verifier))
    third = nullptr;
  if (same_bits(third)) {
    TriageStep result = run_is_wrong(v, first);
    if (!result.verdict) return result;
    result.verdict->verifier = as_the_run.verifier;
    result.verdict->sentence +=
        fmt::format(" A third verifier gets the same other bits: {} only repeats the run's.",
                    as_the_run.verifier);
    return result;
  }
  const TriageAnswer* again = v.answer("same_again");
  const bool third_knows = third != nullptr && third->reproduction;
  const bool may_be_right = !third_knows && v.rules.differing_was_exact;
  if (may_be_right && again == nullptr) return TriageStep::ask({{"same_again"}});
  if ((third_knows && !TriageView::reproduces(third)) || (may_be_right && same_bits(again))) {
    return TriageStep::end(
        v.of_step() ? VerdictName("unexplained") : "broken_instrument",
        fmt::format("{}, says {}; {} gets the run's bits. Both are exact as a rule, and nobody "
                    "else can say who is wrong. Start another verifier.",
                    first.sentence, differs.verifier, as_the_run.verifier));
  }
  TriageStep result = fault("verifier_fault",
                            fmt::format("{}, but another verifier gets the run's bits: {} "
                                        "computes wrongly, not the run.",
                                        first.sentence, differs.verifier),
                            first);
  result.verdict->verifier = differs.verifier;
  return result;
}

// Another verifier gets what the run got. Nothing where what is asked next will tell.
std::optional<TriageStep> contradicted(const TriageView& v, const TriageAnswer& same,
                                       const TriageAnswer& second) {
  const Reproduction& first = *same.reproduction;
  // Losses of two that differ are as much for it as against it.
  if (!first.bitwise) return std::nullopt;
  const bool by_bits = second.reproduction->bitwise;
  const bool third = v.rules.third_verifier || v.answer("same_third") != nullptr;
  if (first.other_batch && by_bits && !third) return tokens_disputed(v, same, second);
  const TriageAnswer* own = v.answer("same_on_trainer");
  if (v.rules.trainer_replays && own == nullptr) return TriageStep::ask({{"same_on_trainer"}});
  const bool trainer_knows = own != nullptr && own->reproduction && own->reproduction->bitwise;
  if (trainer_knows && !TriageView::reproduces(own)) return trainer_differs(v, first);
  if (!by_bits && trainer_knows) return std::nullopt;
  if (!by_bits) {
    return TriageStep::end(
        v.of_step() ? VerdictName("unexplained") : "broken_instrument",
        fmt::format("{}, says {}; {} sees it again by its losses, and its bits cannot "
                    "be compared. Nobody can say who is wrong. Start another verifier.",
                    first.sentence, same.verifier, second.verifier));
  }
  return two_by_bits(v, same, second);
}

}  // namespace

std::optional<TriageStep> ask_elsewhere(const TriageView& v, const TriageAnswer& same) {
  if (v.rules.other_verifiers && v.answer("same_elsewhere") == nullptr)
    return TriageStep::ask({{"same_elsewhere"}});
  const TriageAnswer* second = seen_elsewhere(v, same);
  if (TriageView::reproduces(second)) return contradicted(v, same, *second);
  // One replay alone does not say that bits can be had twice here.
  const bool alone = same.reproduction->bitwise && !same.reproduction->other_batch &&
                     !v.rules.trainer_replays &&
                     std::ranges::count_if(v.evidence.answers, [](const TriageAnswer& known) {
                       return known.reproduction && known.reproduction->bitwise;
                     }) == 1;
  if (alone && v.answer("same_again") == nullptr) return TriageStep::ask({{"same_again"}});
  // Bits say more than losses do.
  const bool by_second =
      second != nullptr && second->reproduction->bitwise && !same.reproduction->bitwise;
  return machine_or_data(v, by_second ? *second : same, by_second ? nullptr : second);
}

std::optional<TriageStep> ask_for_echo(const TriageView& v) {
  const TriageAnswer* same = v.answer("same");
  if (!TriageView::reproduces(same) || !same->reproduction->bitwise || !v.rules.other_verifiers)
    return std::nullopt;
  if (v.answer("same_elsewhere") == nullptr) return TriageStep::ask({{"same_elsewhere"}});
  const TriageAnswer* second = seen_elsewhere(v, *same);
  if (second == nullptr || !second->reproduction->bitwise || TriageView::reproduces(second))
    return std::nullopt;
  return contradicted(v, *second, *same);
}

}  // namespace gnomon::decide
