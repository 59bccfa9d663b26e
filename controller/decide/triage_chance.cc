// Rows of triage: chance. Nudged replays say how far two runs part that differ by a rounding error.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "controller/decide/triage_rows.h"

namespace gnomon::decide {
namespace {

constexpr size_t kMean = 2;  // ends that a mean needs

struct Nudged {
  std::vector<const TriageAnswer*> fp8;
  std::vector<const TriageAnswer*> bf16;
  std::vector<TriageTest> open;  // still to be answered, pair by pair
};

Nudged nudged(const TriageView& v) {
  Nudged result;
  for (int64_t seed = 1; seed <= v.rules.pairs; ++seed) {
    for (const ReplayRole kind : {ReplayRole("fp8_nudged"), ReplayRole("bf16_nudged")}) {
      const TriageAnswer* known = v.answer(kind, seed);
      if (known == nullptr) {
        result.open.push_back({kind, seed});
      } else if (!known->failed) {
        (kind == "fp8_nudged" ? result.fp8 : result.bf16).push_back(known);
      }
    }
  }
  return result;
}

// `by`: nudged answers that decide it; null ones decide nothing.
TriageStep chance_verdict(const TriageView& v, const std::string& why,
                          const std::vector<const TriageAnswer*>& by = {},
                          const char* so = "chance, not FP8") {
  std::vector<TriageTest> rests_on;
  for (const TriageAnswer* answer : by) {
    if (answer != nullptr) rests_on.push_back({answer->kind, answer->seed});
  }
  return TriageStep::end(v.of_step() ? VerdictName("generic_spike") : VerdictName("chance"),
                         fmt::format("{}, but {}: {}.", v.seen_same(), why, so))
      .on(std::move(rests_on));
}

// The run's plan was replayed, and bits say what came out.
bool by_bits(const TriageView& v) {
  const TriageAnswer* same = v.answer("same");
  return same != nullptr && same->reproduction && same->reproduction->bitwise;
}

// Where the nudged replays ended; of a gap also its BF16 replay.
struct Ends {
  double lowest_fp8, highest_fp8, lowest_bf16, highest_bf16;
  bool bf16_finite = true;
  const TriageAnswer* best_fp8 = nullptr;  // nudged ones; null: another replay's
  const TriageAnswer* worst_bf16 = nullptr;
};

Ends ends_of(const TriageView& v, const Nudged& seen) {
  const std::optional<double>& reference = v.evidence.measured.reference;
  Ends ends{HUGE_VAL, -HUGE_VAL, reference.value_or(HUGE_VAL), reference.value_or(-HUGE_VAL)};
  const auto add_fp8 = [&](const TriageAnswer* known) {
    if (known == nullptr || !known->end_loss) return;
    if (*known->end_loss < ends.lowest_fp8)
      ends.best_fp8 = known->kind == "fp8_nudged" ? known : nullptr;
    ends.lowest_fp8 = std::min(ends.lowest_fp8, *known->end_loss);
    ends.highest_fp8 = std::max(ends.highest_fp8, *known->end_loss);
  };
  for (const TriageAnswer* known : seen.fp8) add_fp8(known);
  // With other bits it is a nudged replay as well; but where the trainer answers, its own count.
  const TriageAnswer* same = v.answer("same");
  const bool other_bits = same != nullptr && same->reproduction && !same->reproduction->bitwise;
  if (other_bits && !v.rules.trainer_replays) add_fp8(same);
  for (const TriageAnswer* known : seen.bf16) {
    if (!known->end_loss) continue;
    const bool finite = std::isfinite(*known->end_loss);
    if (ends.bf16_finite && (!finite || *known->end_loss > ends.highest_bf16))
      ends.worst_bf16 = known;
    ends.bf16_finite = ends.bf16_finite && finite;
    ends.lowest_bf16 = std::min(ends.lowest_bf16, *known->end_loss);
    ends.highest_bf16 = std::max(ends.highest_bf16, *known->end_loss);
  }
  return ends;
}

double allowed(const TriageView& v, const Ends& ends) {
  return ends.highest_bf16 * (1 + v.rules.tolerance_percent / 100);
}

// FP8 may spoil the weights in every replay and spike in some: all replays under the run's plan
// end higher than all in BF16. Three pairs part so by chance one time in twenty.
bool ends_part(const TriageView& v, const Nudged& seen) {
  constexpr size_t kPairs = 3;
  const auto ended = [](const TriageAnswer* known) { return known->end_loss.has_value(); };
  if (seen.fp8.size() < kPairs || seen.bf16.size() < kPairs) return false;
  if (!std::ranges::all_of(seen.fp8, ended) || !std::ranges::all_of(seen.bf16, ended)) return false;
  const Ends ends = ends_of(v, seen);
  return ends.bf16_finite && ends.lowest_fp8 > allowed(v, ends);
}

// Nobody can say which of two that contradict each other about a nudged replay is wrong.
std::optional<TriageStep> chance_disputed(const TriageView& v) {
  const auto is_disputed = [](const TriageAnswer& answer) {
    return is_nudged(answer.kind) && answer.disputed;
  };
  if (std::ranges::none_of(v.evidence.answers, is_disputed)) return std::nullopt;
  const std::string why = "sources contradict each other about its nudged replays";
  if (!v.of_step()) return chance_verdict(v, why, {}, "only further windows can tell");
  return TriageStep::end("unexplained", fmt::format("{}, but {}.", v.seen_same(), why));
}

std::optional<TriageStep> chance_of_spike(const TriageView& v) {
  const Nudged seen = nudged(v);
  int64_t fp8 = 1;  // the run itself, reproduced
  int64_t bf16 = 0;
  const TriageAnswer* without = nullptr;  // FP8 that does not suffer
  const TriageAnswer* shared = nullptr;
  for (const TriageAnswer* known : seen.fp8) {
    const bool suffers = known->spike && v.suffers(*known->spike);
    fp8 += suffers ? 1 : 0;
    if (!suffers) without = known;
  }
  for (const TriageAnswer* known : seen.bf16) {
    if (!known->spike || !v.suffers(*known->spike)) continue;
    bf16 += 1;
    shared = known;
  }
  if (shared != nullptr) {
    return chance_verdict(v, "BF16 suffers too when its weights are nudged by a rounding error",
                          {shared});
  }
  if (!seen.open.empty()) return TriageStep::ask(seen.open);
  const int64_t fp8_all = 1 + static_cast<int64_t>(seen.fp8.size());
  const int64_t bf16_all = 1 + static_cast<int64_t>(seen.bf16.size());
  // The best that so many replays can show, and no more than one FP8 replay may fail to.
  const double p = fisher_p(fp8, fp8_all, bf16, bf16_all);
  const double needed = fisher_p(fp8_all - (fp8_all > 4 ? 1 : 0), fp8_all, 0, bf16_all);
  if (p <= needed * (1 + 1e-9) || ends_part(v, seen)) return std::nullopt;
  if (auto next = ask_for_echo(v)) return *next;
  return chance_verdict(v,
                        fmt::format("only {} of {} replays under the run's plan and {} of {} in "
                                    "BF16 suffer (Fisher's exact test: p = {:.2g})",
                                    fp8, fp8_all, bf16, bf16_all, p),
                        {without, by_bits(v) ? nullptr : v.plain()});
}

// Healthy ends lie within this of each other; the run's own end lies far beyond all of them.
bool stands_alone(const TriageView& v, const Ends& ends) {
  constexpr double kRanges = 2;
  const double highest = std::max(ends.highest_fp8, ends.highest_bf16);
  const double range = highest - std::min(ends.lowest_fp8, ends.lowest_bf16);
  return *v.evidence.measured.reference + *v.evidence.measured.gap > highest + kRanges * range;
}

// An alarm by one window says that FP8 does not get so far by chance. Nudged replays take out what
// rounding adds to it; what the window's own weights and batches add, all of them have.
bool is_under_limit(const TriageView& v, const Nudged& seen) {
  const auto is_finite = [](const TriageAnswer* known) {
    return known->end_loss && std::isfinite(*known->end_loss);
  };
  return std::ranges::all_of(seen.fp8, is_finite) && std::ranges::all_of(seen.bf16, is_finite) &&
         level_of(v.evidence) <= v.rules.one_window_percent;
}

std::optional<TriageStep> chance_of_gap(const TriageView& v) {
  if (!v.evidence.measured.gap || !v.evidence.measured.reference) return std::nullopt;
  const Nudged seen = nudged(v);
  const Ends ends = ends_of(v, seen);
  if (!ends.bf16_finite) {
    return chance_verdict(v, "a BF16 replay diverges too when its weights are nudged",
                          {ends.worst_bf16});
  }
  const double own = *v.evidence.measured.reference + *v.evidence.measured.gap;
  if (std::min(own, ends.lowest_fp8) <= allowed(v, ends)) {
    if (!by_bits(v) && stands_alone(v, ends)) {
      if (!seen.open.empty()) return TriageStep::ask(seen.open);
      return std::nullopt;
    }
    if (stands_alone(v, ends)) {
      if (auto next = ask_for_echo(v)) return *next;
    }
    return chance_verdict(
        v,
        fmt::format(
            "replays whose weights were nudged by a rounding error meet within the tolerance: the "
            "best under the run's plan ends at {:.4f}, the worst in BF16 at {:.4f}",
            std::min(own, ends.lowest_fp8), ends.highest_bf16),
        {ends.lowest_fp8 < own ? ends.best_fp8 : nullptr, ends.worst_bf16});
  }
  if (!seen.open.empty()) return TriageStep::ask(seen.open);
  if (is_under_limit(v, seen)) {
    std::vector<const TriageAnswer*> pairs = seen.fp8;
    pairs.insert(pairs.end(), seen.bf16.begin(), seen.bf16.end());
    return chance_verdict(
        v,
        fmt::format("replays whose weights were nudged by a rounding error show {:.2f}% in the "
                    "mean, and one window may show {:.2f}%",
                    level_of(v.evidence), v.rules.one_window_percent),
        pairs, "only further windows can tell");
  }
  const bool nobody = seen.fp8.empty() || seen.bf16.empty();
  if (nobody && *v.evidence.measured.d_percent <= v.rules.ceiling_percent) {
    return chance_verdict(v,
                          "nobody could replay it from nudged weights, and one window alone is "
                          "not enough");
  }
  return std::nullopt;
}

}  // namespace

double level_of(const TriageEvidence& evidence) {
  if (evidence.chance_excluded) return evidence.level_percent;
  double fp8 = 0, bf16 = 0;
  size_t fp8_ends = 0, bf16_ends = 0;
  for (const TriageAnswer& answer : evidence.answers) {
    if (answer.failed || !answer.end_loss || !std::isfinite(*answer.end_loss)) continue;
    if (answer.kind == "fp8_nudged") {
      fp8 += *answer.end_loss;
      ++fp8_ends;
    } else if (answer.kind == "bf16_nudged") {
      bf16 += *answer.end_loss;
      ++bf16_ends;
    }
  }
  if (fp8_ends < kMean || bf16_ends < kMean) return evidence.level_percent;
  const double reference = bf16 / static_cast<double>(bf16_ends);
  return 100 * (fp8 / static_cast<double>(fp8_ends) - reference) / reference;
}

std::vector<TriageTest> ruled_out_chance(const TriageView& v) {
  if (!asks_chance(v)) return {};
  std::map<std::string, std::vector<TriageTest>> by_source;
  for (const TriageAnswer& answer : v.evidence.answers) {
    if (is_nudged(answer.kind) && !answer.failed && !answer.on_trainer)
      by_source[answer.verifier].push_back({answer.kind, answer.seed});
  }
  std::vector<TriageTest> needed;
  for (const auto& [source, tests] : by_source) {
    TriageEvidence others = v.evidence;
    for (TriageAnswer& answer : others.answers)
      answer.failed |= is_nudged(answer.kind) && answer.verifier == source;
    const TriageView without{others, v.rules};
    const Nudged left = nudged(without);
    if (left.fp8.size() < kMean || left.bf16.size() < kMean || ask_chance(without))
      needed.insert(needed.end(), tests.begin(), tests.end());
  }
  return needed;
}

bool asks_chance(const TriageView& v) { return !v.evidence.chance_excluded && v.rules.pairs > 0; }

std::optional<TriageStep> ask_chance(const TriageView& v) {
  if (!asks_chance(v)) return std::nullopt;
  auto step = v.of_step() ? chance_of_spike(v) : chance_of_gap(v);
  return step ? step : chance_disputed(v);
}

bool parts_by_nudges(const TriageView& v) {
  if (!v.evidence.measured.gap || !v.evidence.measured.reference) return false;
  const Nudged seen = nudged(v);
  if (seen.fp8.empty() || seen.bf16.empty()) return false;
  return ends_of(v, seen).lowest_fp8 > allowed(v, ends_of(v, seen));
}

}  // namespace gnomon::decide
