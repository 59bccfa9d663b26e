#include "controller/decide/agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <utility>

namespace gnomon::decide {
namespace {

// In 1,250 healthy windows of the detection study the reported losses lay over the replay's by
// 0.09%, give or take 0.08% (mean of the last five steps).
constexpr double kReportsShare = 0.2;    // of D
constexpr double kReportsPercent = 0.3;  // and at least

bool same_number(const std::optional<double>& one, const std::optional<double>& other) {
  if (!one || !other) return one.has_value() == other.has_value();
  if (std::isnan(*one) && std::isnan(*other)) return true;
  return std::bit_cast<uint64_t>(*one) == std::bit_cast<uint64_t>(*other);
}

bool comparable(const Witness& one, const Witness& other) {
  if (one.fingerprint_equal && other.fingerprint_equal) return true;
  return !one.fingerprint.empty() && one.fingerprint == other.fingerprint;
}

std::string words(const Witness& witness) {
  const Measurement& m = witness.measured;
  const std::string name =
      witness.on_trainer ? "the trainer (" + witness.verifier + ")" : witness.verifier;
  std::string said = name;
  if (m.reference && m.d_percent) {
    said += fmt::format(": BF16 ends at {:.6f}, D = {:.4f}%", *m.reference, *m.d_percent);
  } else if (witness.suffers) {
    said += fmt::format(": BF16 {}", *witness.suffers ? "suffers" : "does not suffer");
  }
  if (!witness.other_batches.empty())
    said += fmt::format(", the run took other tokens in step {}", witness.other_batches[0].step);
  return said;
}

}  // namespace

Agreement compare_witnesses(const Witness& one, const Witness& other, double noise_percent) {
  Agreement result;
  const Measurement& a = one.measured;
  const Measurement& b = other.measured;
  result.bitwise = comparable(one, other);
  const bool tokens_known = !one.on_trainer && !other.on_trainer;
  const bool same_tokens = one.other_batches.empty() == other.other_batches.empty();
  bool equal = one.suffers.value_or(false) == other.suffers.value_or(false) &&
               (same_tokens || !tokens_known);
  if (result.bitwise) {
    const bool hashed = !one.end_hash.empty() && !other.end_hash.empty();
    equal = equal && (!hashed || one.end_hash == other.end_hash) && same_number(a.gap, b.gap) &&
            same_number(a.reference, b.reference) && same_number(a.offset, b.offset) &&
            same_number(a.start_loss_plan, b.start_loss_plan);
  } else if (a.reference && b.reference) {
    const auto apart = [&](double x, double y) { return !(std::abs(x - y) <= noise_percent); };
    const bool finite = a.gap.has_value() == b.gap.has_value();
    equal = equal && finite && !apart(100 * *a.reference / *b.reference, 100) &&
            !(a.gap && apart(a.d_percent.value_or(0), b.d_percent.value_or(0)));
  }
  result.agrees = equal;
  result.sentence =
      fmt::format("{}; {} ({})", words(one), words(other),
                  result.bitwise ? "compared bit by bit"
                                 : fmt::format("their devices differ; compared within "
                                               "{:.2f}%",
                                               noise_percent));
  return result;
}

bool agree_but_for_offset(Witness one, Witness other, double noise_percent) {
  one.measured = without_offset(std::move(one.measured));
  other.measured = without_offset(std::move(other.measured));
  return compare_witnesses(one, other, noise_percent).agrees;
}

bool offsets_apart(const Witness& one, const Witness& other, double noise_percent) {
  const Measurement& a = one.measured;
  const Measurement& b = other.measured;
  if (!a.offset || !b.offset) return false;
  if (comparable(one, other)) return !same_number(a.offset, b.offset);
  return !(100 * std::abs(*a.offset - *b.offset) <= noise_percent * std::abs(*a.reference));
}

bool borne_out(const std::optional<double>& reports_percent, double d_percent) {
  const bool reported = reports_percent && std::isfinite(*reports_percent);
  // Where a run's end is not finite, its last losses may not be either.
  if (!std::isfinite(d_percent)) return !reported || *reports_percent >= kReportsPercent;
  return reported && *reports_percent >= std::max(kReportsPercent, kReportsShare * d_percent);
}

bool avoids(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t end = list.find('\n');
    if (list.substr(0, end) == name) return true;
    if (end == std::string_view::npos) return false;
    list.remove_prefix(end + 1);
  }
  return false;
}

}  // namespace gnomon::decide
