// A verdict that rests on single answers: what do other sources say of them?
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "controller/decide/triage_rows.h"

namespace gnomon::decide {
namespace {

constexpr double kOffsetShare = 0.05;  // half of what tells one way to compute FP8 from another

bool near(const std::optional<double>& one, const std::optional<double>& other, double most) {
  if (!one || !other) return one.has_value() == other.has_value();
  if (!std::isfinite(*one) || !std::isfinite(*other))
    return std::isfinite(*one) == std::isfinite(*other);
  return std::abs(*one - *other) <= most;
}

// Losses within `noise`, per cent.
bool agree(const TriageView& v, const TriageAnswer& one, const TriageAnswer& other, double noise) {
  if (v.of_step()) {
    const auto suffers = [&](const TriageAnswer& answer) {
      return answer.spike && v.suffers(*answer.spike);
    };
    return suffers(one) == suffers(other);
  }
  const double loss = std::abs(v.evidence.measured.reference.value_or(1)) * noise / 100;
  const auto& offset = v.evidence.measured.offset;
  return near(one.end_loss, other.end_loss, loss) &&
         near(one.long_d_percent, other.long_d_percent, noise) &&
         near(one.start_loss_plan, other.start_loss_plan,
              offset ? std::abs(*offset) * kOffsetShare : loss);
}

bool agree(const TriageView& v, const TriageAnswer& one, const TriageAnswer& other) {
  return agree(v, one, other,
               std::max(v.rules.between_percent, kDeviations * v.rules.noise_percent));
}

// Where chance decides an answer, one of three may honestly stand alone: bits name, or a distance
// that chance does not make.
bool stands_alone(const TriageView& v, const TriageAnswer& alone, const TriageAnswer& one,
                  const TriageAnswer& other) {
  if (alone.on_trainer || !agree(v, one, other)) return false;
  if (alone.exact && one.exact && other.exact) return true;
  return !v.of_step() && !agree(v, alone, one, v.rules.naming_percent) &&
         !agree(v, alone, other, v.rules.naming_percent);
}

std::string name_of(const TriageTest& test) {
  return test.seed == 0 ? std::string(test.kind) : fmt::format("{} {}", test.kind, test.seed);
}

TriageStep name_alone(const TriageTest& test, const TriageAnswer& alone, const TriageAnswer& one,
                      const TriageAnswer& other) {
  TriageStep step = TriageStep::end(
      "verifier_fault", fmt::format("{} stands alone against {} and {} about one replay ({}).",
                                    alone.verifier, one.verifier, other.verifier, name_of(test)));
  step.verdict->verifier = alone.verifier;
  return step;
}

// Nothing where nobody contradicts the answer, or nobody else can be asked.
std::optional<SecondOpinion> second_opinion(const TriageView& v, const TriageTest& test) {
  const TriageAnswer* first = v.answer(test.kind, test.seed);
  if (first == nullptr || first->failed) return std::nullopt;
  if (first->on_trainer && is_nudged(first->kind)) return std::nullopt;
  std::vector<const TriageAnswer*> seconds;
  for (const TriageAnswer& known : v.evidence.seconds) {
    if (known.kind == test.kind && known.seed == test.seed) seconds.push_back(&known);
  }
  const TriageTest again{test.kind, test.seed, true};
  if (seconds.empty()) return SecondOpinion{TriageStep::ask({again}), std::nullopt, ""};
  const TriageAnswer& second = *seconds.front();
  // Where nobody else takes it, who was asked before may do it again.
  const auto is_other = [](const TriageAnswer& one, const TriageAnswer& other) {
    return !one.failed && one.verifier != other.verifier;
  };
  if (!is_other(second, *first) || agree(v, *first, second)) return std::nullopt;
  if (seconds.size() == 1) return SecondOpinion{TriageStep::ask({again}), std::nullopt, ""};
  const TriageAnswer& third = *seconds[1];
  const bool known = is_other(third, *first) && is_other(third, second);
  if (known && stands_alone(v, second, *first, third))
    return SecondOpinion{name_alone(test, second, *first, third), std::nullopt, ""};
  if (known && stands_alone(v, *first, second, third))
    return SecondOpinion{name_alone(test, *first, second, third), std::nullopt, ""};
  if (known && agree(v, *first, third)) return std::nullopt;  // two of three agree
  const bool by_trainer = second.on_trainer || (known && third.on_trainer);
  const char* so = by_trainer && is_nudged(test.kind)
                       ? "of which the trainer's own device counts"
                       : "which counts for nothing: nobody else can say who is wrong";
  return SecondOpinion{std::nullopt, test,
                       fmt::format(" {} and {} contradict each other about one replay ({}), {}.",
                                   first->verifier, second.verifier, name_of(test), so)};
}

}  // namespace

SecondOpinion ask_second_sources(const TriageView& v, const TriageStep& step) {
  SecondOpinion result;
  if (!v.rules.other_verifiers && !v.rules.trainer_replays) return result;
  std::vector<TriageTest> tests;
  for (const TriageTest& test : step.rests_on) {
    const auto said = second_opinion(v, test);
    if (!said) continue;
    if (!said->next || said->next->verdict) return *said;
    tests.insert(tests.end(), said->next->tests.begin(), said->next->tests.end());
  }
  if (!tests.empty()) result.next = TriageStep::ask(std::move(tests));
  return result;
}

bool nobody_repeats(const TriageView& v, const TriageTest& test) {
  const TriageAnswer* first = v.answer(test.kind, test.seed);
  const auto is_of = [&](const TriageAnswer& second) {
    return second.kind == test.kind && second.seed == test.seed;
  };
  const auto is_other = [&](const TriageAnswer& second) {
    return is_of(second) && !second.failed && second.verifier != first->verifier;
  };
  return std::ranges::any_of(v.evidence.seconds, is_of) &&
         std::ranges::none_of(v.evidence.seconds, is_other);
}

// Where two of three agree and the third is not named, what they say counts.
static void count_majorities(TriageEvidence& evidence, const TriageRules& rules) {
  for (TriageAnswer& first : evidence.answers) {
    std::vector<TriageAnswer> others;
    for (const TriageAnswer& second : evidence.seconds) {
      const bool same = first.kind == second.kind && first.seed == second.seed;
      if (same && !second.failed && second.verifier != first.verifier) others.push_back(second);
    }
    if (first.failed || others.size() < 2 || others[0].verifier == others[1].verifier) continue;
    const TriageView v{evidence, rules};
    const bool alone = !agree(v, first, others[0]) && agree(v, others[0], others[1]);
    if (alone && !stands_alone(v, first, others[0], others[1])) first = others[0];
  }
}

void weigh_seconds(TriageEvidence& evidence, const TriageRules& rules) {
  count_majorities(evidence, rules);
  for (const TriageAnswer& second : evidence.seconds) {
    const TriageView v{evidence, rules};
    for (TriageAnswer& first : evidence.answers) {
      const bool same = first.kind == second.kind && first.seed == second.seed;
      if (!same || !is_nudged(first.kind) || first.failed || second.failed) continue;
      if (!agree(v, first, second) || !first.end_loss || !second.end_loss) continue;
      const double one = *first.end_loss, other = *second.end_loss;
      first.end_loss = first.kind == "fp8_nudged" ? std::min(one, other) : std::max(one, other);
    }
  }
}

}  // namespace gnomon::decide
