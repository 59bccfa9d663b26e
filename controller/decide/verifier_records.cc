#include "controller/decide/verifier_records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "controller/decide/plans.h"

namespace gnomon::decide {
namespace {

constexpr int64_t kTrainerCheckEvery = 4;  // of a dispute that only the trainer can settle
constexpr int64_t kRepeatsMax = 3;         // windows with the answer of the one before in a row
constexpr int64_t kZerosMax = 3;           // windows without any difference in a row
constexpr size_t kRecentMax = 8;
constexpr size_t kRecentMin = 3;
constexpr double kFarOut = 4;         // deviations of D
constexpr double kApart = 4;          // errors of the difference of two means
constexpr double kScaleGrowth = 2;    // that is said
constexpr size_t kReportedSteps = 5;  // at a window's end

VerifierRecord& record_of(State& s, const std::string& verifier) {
  for (VerifierRecord& known : s.trust.records) {
    if (known.verifier == verifier) return known;
  }
  if (s.trust.records.size() >= kVerifiersMax) s.trust.records.erase(s.trust.records.begin());
  s.trust.records.push_back({});
  s.trust.records.back().verifier = verifier;
  return s.trust.records.back();
}

struct Mean {
  double n = 0, mean = 0, squares = 0;
  void add(double value) {
    n += 1;
    const double delta = value - mean;
    mean += delta / n;
    squares += delta * (value - mean);
  }
};

Mean of_others(const State& s, const VerifierRecord& record) {
  Mean others;
  for (const VerifierRecord& known : s.trust.records) {
    if (known.verifier == record.verifier || known.plan_version != record.plan_version) continue;
    for (const double d : known.recent) others.add(d);
  }
  return others;
}

// Its mean D is another one than the others', beyond chance.
bool stands_apart(const State& s, const VerifierRecord& record, double least) {
  const Mean others = of_others(s, record);
  Mean own;
  for (const double d : record.recent) own.add(d);
  if (own.n < kRecentMin || others.n < kRecentMin) return false;
  const double freedom = own.n + others.n - 2;
  const double variance = std::max((own.squares + others.squares) / freedom, least * least);
  const double error = std::sqrt(variance * (1 / own.n + 1 / others.n));
  return std::abs(own.mean - others.mean) > kApart * error;
}

// The newest D lies far from what the run has shown, in either direction: by the deviation that D
// is known to have, or that the policy expects of it. FP8 better by more than the ceiling is never
// taken on trust: a scale that such answers have taught would cover for them.
bool far_out(const Core& core, const VerifierRecord& record, double d) {
  const Policy::Detector& detector = core.policy.detector;
  const GapScale& scale = core.s.watch.gap.scale;
  if (!std::isfinite(d) || d < -detector.ceiling_percent) return true;
  const bool known = scale.freedom >= kScaleFreedom && scale.plan_version == record.plan_version;
  const double deviation = known ? std::sqrt(scale.variance) : detector.prior_scale_percent;
  Mean all = of_others(core.s, record);
  for (const double before : record.recent) all.add(before);
  if (all.n < kRecentMin) return false;
  return std::abs(d - all.mean) > std::max(kFarOut * deviation, detector.tolerance_percent / 2);
}

bool equal_bits(double one, double other) {
  return std::bit_cast<uint64_t>(one) == std::bit_cast<uint64_t>(other);
}

// FP8 better than BF16 by more than the tolerance, beyond chance: what hides a fault.
bool too_good(const VerifierRecord& record, double tolerance) {
  Mean own;
  for (const double d : record.recent) own.add(d);
  if (own.n <= kRecentMin) return false;
  const double error = std::sqrt(own.squares / (own.n - 1) / own.n);
  return own.mean < -tolerance && own.mean < -kApart * error;
}

// The answer of another window once more. The same window gives the same answer, whatever plan the
// run had meanwhile.
bool repeats(const VerifierRecord& record, const WindowState& window) {
  const Witness& witness = window.witnesses.front();
  const std::optional<double>& reference = witness.measured.reference;
  const bool same = (reference && equal_bits(*reference, record.last_reference)) ||
                    (!witness.end_hash.empty() && witness.end_hash == record.last_hash);
  return same && window.start.step != record.last_start;
}

// What no honest verifier answers again and again.
std::string implausible(const VerifierRecord& record) {
  if (record.zeros >= kZerosMax)
    return fmt::format("{} saw no difference between FP8 and BF16 in {} windows in a row",
                       record.verifier, record.zeros);
  if (record.repeats >= kRepeatsMax)
    return fmt::format("{} gave one answer for {} windows in a row", record.verifier,
                       record.repeats + 1);
  return {};
}

// What no honest replay can answer.
std::string impossible(const VerifierRecord& record, const ReplayFinished& replay,
                       double tolerance) {
  const bool own_bits = replay.fingerprint_equal && replay.compared_steps > 0 &&
                        replay.compared_steps == std::ssize(replay.steps) &&
                        !replay.first_mismatch_step && record.zeros > 0;
  if (own_bits) return fmt::format("{} gave the run's own bits for a BF16 replay", record.verifier);
  if (std::string why = implausible(record); !why.empty()) return why;
  if (too_good(record, tolerance))
    return fmt::format("{} saw FP8 end better than BF16 by more than {:.2f}% in {} windows",
                       record.verifier, tolerance, record.recent.size());
  return {};
}

void remember(VerifierRecord& record, const WindowState& window, const Witness& witness) {
  const double d = witness.measured.d_percent.value_or(0);
  record.last_start = window.start.step;
  record.last_reference = witness.measured.reference.value_or(0);
  record.last_hash = witness.end_hash;
  if (record.plan_version != window.plan_version) record.recent.clear();
  record.plan_version = window.plan_version;
  if (!std::isfinite(d)) return;
  if (record.recent.size() >= kRecentMax) record.recent.erase(record.recent.begin());
  record.recent.push_back(d);
}

}  // namespace

bool believed(const State& s, const std::string& verifier) {
  return std::ranges::find(s.trust.quarantined, verifier) == s.trust.quarantined.end();
}

std::vector<std::string> believed_verifiers(const State& s) {
  std::vector<std::string> all;
  std::ranges::copy_if(s.trust.verifiers, std::back_inserter(all),
                       [&](const std::string& known) { return believed(s, known); });
  std::ranges::sort(all);
  return all;
}

bool others_believed(const State& s, const std::string& verifier) {
  return std::ranges::any_of(believed_verifiers(s),
                             [&](const std::string& known) { return known != verifier; });
}

const VerifierRecord* find_record(const State& s, const std::string& verifier) {
  const auto found = std::ranges::find(s.trust.records, verifier, &VerifierRecord::verifier);
  return found != s.trust.records.end() ? &*found : nullptr;
}

void note_difference(State& s, const Witness& witness) {
  if (witness.on_trainer || !witness.measured.d_percent) return;
  VerifierRecord& record = record_of(s, witness.verifier);
  record.zeros = std::abs(*witness.measured.d_percent) < kNoDifference ? record.zeros + 1 : 0;
}

std::string implausible(const State& s, const Witness& witness) {
  const VerifierRecord* record = find_record(s, witness.verifier);
  return record == nullptr || witness.on_trainer ? std::string() : implausible(*record);
}

void forget_record(State& s, const std::string& verifier) {
  std::erase_if(s.trust.records,
                [&](const VerifierRecord& known) { return known.verifier == verifier; });
}

void note_checked(State& s, const std::string& verifier) {
  VerifierRecord& record = record_of(s, verifier);
  record.since_check = 0;
  record.windows = std::max<int64_t>(1, record.windows);  // a second source is checked, too
  record.to_check = std::max<int64_t>(0, record.to_check - 1);
}

void note_exact(State& s, const std::string& verifier, bool exact) {
  VerifierRecord& record = record_of(s, verifier);
  record.exact = exact;
  record.was_exact |= exact;
}

void note_unsettled_bits(State& s, const std::string& verifier) {
  record_of(s, verifier).was_exact = false;
}

std::vector<std::string> shown_exact(const State& s) {
  const auto repeats = [&](const std::string& verifier, bool bitwise) {
    if (!s.investigation) return false;
    return std::ranges::any_of(s.investigation->evidence.answers, [&](const TriageAnswer& answer) {
      return answer.verifier == verifier && answer.reproduction &&
             answer.reproduction->reproduces && (answer.reproduction->bitwise || !bitwise);
    });
  };
  std::vector<std::string> by_bits, by_losses;
  for (const std::string& verifier : believed_verifiers(s)) {
    const VerifierRecord* record = find_record(s, verifier);
    const bool audited = record != nullptr && record->exact;
    if (audited || repeats(verifier, true)) by_bits.push_back(verifier);
    if (repeats(verifier, false)) by_losses.push_back(verifier);
  }
  return by_bits.empty() ? by_losses : by_bits;
}

bool trainer_can_replay(const State& s) { return s.run.trainer_answers() && !s.ended; }

void ask_own_fp8(const State& s, OrderReplay& wanted) {
  const std::vector<std::string> shown = shown_exact(s);
  if (shown.empty()) {
    wanted.on_trainer = trainer_can_replay(s);
    return;
  }
  std::vector<std::string> others = believed_verifiers(s);
  std::erase_if(others, [&](const std::string& verifier) {
    return std::ranges::find(shown, verifier) != shown.end();
  });
  wanted.avoid = fmt::format("{}", fmt::join(others, "\n"));
}

void check_next(State& s, const std::string& verifier, int64_t windows) {
  record_of(s, verifier).to_check = windows;
}

CheckDue note_answer(Core& core, const WindowState& window, const ReplayFinished& replay) {
  State& s = core.s;
  const Witness& witness = window.witnesses.front();
  VerifierRecord& record = record_of(s, witness.verifier);
  if (window.kind != "shadow") return {};
  const double tolerance = core.policy.detector.tolerance_percent;
  const double d = witness.measured.d_percent.value_or(0);
  record.windows += 1;
  record.since_check += 1;
  note_difference(s, witness);
  record.repeats = repeats(record, window) ? record.repeats + 1 : 0;
  CheckDue due;
  const bool outlier = far_out(core, record, d);
  due.suspicion = impossible(record, replay, tolerance);
  remember(record, window, witness);
  const bool only_trainer = s.trust.verifiers.size() <= 1;
  const bool disputed =
      s.watch.instrument.disputed && (!only_trainer || record.since_check >= kTrainerCheckEvery);
  const bool other_tokens = !witness.other_batches.empty() && !s.trust.other_tokens;
  due.odd = !due.suspicion.empty() || other_tokens || record.zeros > 0 ||
            record.since_check >= record.windows || record.to_check > 0 || disputed || outlier ||
            (record.since_check >= 2 &&
             (s.watch.burst_left > 0 || stands_apart(s, record, tolerance / 50)));
  due.check = due.odd || record.since_check >= kCheckEvery || window.instrument_pending;
  return due;
}

std::optional<double> reports_over(const ReplayFinished& replay) {
  const size_t count = std::min(replay.losses.size(), replay.run_losses.size());
  const auto over = [&](size_t i) -> std::optional<double> {
    const double own = replay.losses[i], run = replay.run_losses[i];
    if (!std::isfinite(own) || !std::isfinite(run) || own == 0) return std::nullopt;
    return 100 * (run - own) / std::abs(own);
  };
  Mean mean;
  for (size_t i = count > kReportedSteps ? count - kReportedSteps : 0; i < count; ++i) {
    if (const std::optional<double> now = over(i)) mean.add(*now);
  }
  if (mean.n == 0) return std::nullopt;
  // The first step has equal weights: where FP8 evaluates lower there, damage shows as a rise.
  return mean.mean - std::min(over(0).value_or(0), 0.0);
}

// The base below which nobody is blinded.
static double scale_base(const Core& core) {
  const InstrumentState& instrument = core.s.watch.instrument;
  return std::max(instrument.scale_agreed, core.policy.detector.tolerance_percent / 5);
}

double scale_most(const Core& core) {
  if (core.s.watch.instrument.scale_agreed <= 0) return 0;
  return kScaleGrowth * scale_base(core);
}

void note_scale(Core& core) {
  State& s = core.s;
  InstrumentState& instrument = s.watch.instrument;
  const GapScale& scale = s.watch.gap.scale;
  if (scale.freedom < kScaleFreedom) return;
  const double learned = std::sqrt(scale.variance);
  if (instrument.scale_agreed <= 0) {
    instrument.scale_agreed = instrument.scale_recorded = learned;
    return;
  }
  const double before = std::max(scale_base(core), instrument.scale_recorded);
  if (learned <= kScaleGrowth * before) return;
  core.record("instrument",
              fmt::format("The noise of D has grown from {:.3f}% to {:.3f}%: smaller gaps are seen "
                          "later. The next window of every verifier is measured twice, and until "
                          "two sources agree no more than {:.3f}% is believed.",
                          before, learned, scale_most(core)),
              {{"before_percent", number(before)}, {"scale_percent", number(learned)}});
  instrument.scale_recorded = learned;
  for (VerifierRecord& record : s.trust.records)
    record.to_check = std::max<int64_t>(1, record.to_check);
}

}  // namespace gnomon::decide
