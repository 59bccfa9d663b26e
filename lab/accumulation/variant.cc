#include "lab/accumulation/variant.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/errors.h"
#include "kernels/cpu/hopper_accumulate.h"

namespace gnomon {
namespace {

constexpr int64_t kDefaultPromotion = 128;
constexpr const char* kAccepted =
    "terms=16|32|64, bits=1 to 23, result=1 to 23, promote=0 or a multiple of terms; separated by "
    "commas";

std::vector<float> decoded(const std::vector<uint8_t>& codes, Format format) {
  std::vector<float> values(codes.size());
  std::ranges::transform(codes, values.begin(),
                         [format](uint8_t code) { return decode(format, code); });
  return values;
}

std::vector<float> multiply_exactly(const ProductProblem& problem, int threads) {
  const ProblemSpec& s = problem.spec;
  const std::vector<float> a = decoded(problem.a, s.a_format), b = decoded(problem.b, s.b_format);
  std::vector<float> d(static_cast<size_t>(s.m * s.n));
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < s.k; ++t) {
        sum += static_cast<double>(a[static_cast<size_t>(i * s.k + t)]) *
               static_cast<double>(b[static_cast<size_t>(j * s.k + t)]);
      }
      d[static_cast<size_t>(i * s.n + j)] = static_cast<float>(sum);
    }
  }
  return d;
}

std::vector<bf16> in_bf16(const std::vector<uint8_t>& codes, Format format) {
  std::vector<bf16> values(codes.size());
  std::ranges::transform(codes, values.begin(),
                         [format](uint8_t code) { return to_bf16(decode(format, code)); });
  return values;
}

bool accepted(const Variant& it) {
  const TensorCoreSum& s = it.sum;
  return (s.terms == 16 || s.terms == 32 || s.terms == 64) && s.fraction_bits >= 1 &&
         s.fraction_bits <= kTensorCoreBitsMax && s.result_bits >= 1 &&
         s.result_bits <= kTensorCoreBitsMax && it.promote_every >= 0 &&
         it.promote_every % s.terms == 0;
}

}  // namespace

std::string Variant::name() const {
  if (kind == SumKind::kExact) return "exact";
  if (kind == SumKind::kFp32) return "fp32";
  return fmt::format(
      "{} terms, {} bits, result {} bits, {}", sum.terms, sum.fraction_bits, sum.result_bits,
      promote_every == 0 ? "never promoted" : fmt::format("promoted every {}", promote_every));
}

Variant default_variant(bool fast_accumulate) {
  return {SumKind::kTensorCore, {}, fast_accumulate ? 0 : kDefaultPromotion};
}

std::vector<Variant> candidate_variants() {
  std::vector<Variant> found = {default_variant(true),
                                default_variant(false),
                                {SumKind::kExact, {}, 0},
                                {SumKind::kFp32, {}, 0}};
  for (int terms : {32, 16, 64}) {
    for (int bits = 10; bits <= kTensorCoreBitsMax; ++bits) {
      for (int result : {bits, kTensorCoreBitsMax}) {
        for (int64_t promote : {0, 128, 32, 64, 256, 512}) {
          const Variant it{SumKind::kTensorCore, {terms, bits, result}, promote};
          if (accepted(it) && std::ranges::find(found, it) == found.end()) found.push_back(it);
        }
      }
    }
  }
  return found;
}

Variant variant_from_text(const std::string& text, const std::string& flag) {
  auto refuse = [&] { throw ConfigError("command line", 0, flag, text, kAccepted); };
  std::map<std::string, int64_t, std::less<>> values = {
      {"terms", kHopperTerms}, {"bits", 13}, {"result", 13}, {"promote", 0}};
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string part = text.substr(at, end - at);
    const size_t equals = std::min(part.find('='), part.size());
    const auto found = values.find(part.substr(0, equals));
    const char* last = part.data() + part.size();
    const char* first = std::min(part.data() + equals + 1, last);
    if (found == values.end()) refuse();
    const auto [stopped, error] = std::from_chars(first, last, found->second);
    if (error != std::errc() || stopped != last || found->second > 1 << 20) refuse();
    at = end + 1;
  }
  const Variant it{SumKind::kTensorCore,
                   {static_cast<int>(values["terms"]), static_cast<int>(values["bits"]),
                    static_cast<int>(values["result"])},
                   values["promote"]};
  if (!accepted(it)) refuse();
  return it;
}

std::vector<float> multiply(const Variant& variant, const ProductProblem& problem, int threads) {
  if (variant.kind == SumKind::kExact) return multiply_exactly(problem, threads);
  const ProblemSpec& s = problem.spec;
  const std::vector<bf16> a = in_bf16(problem.a, s.a_format), b = in_bf16(problem.b, s.b_format);
  const float one = 1.0f;
  std::vector<float> d(static_cast<size_t>(s.m * s.n));
  const Accumulation accumulation{variant.kind == SumKind::kTensorCore, variant.promote_every,
                                  variant.sum};
  cpu::ScaledProducts(threads).run(
      GemmShape{.m = s.m, .n = s.n, .k = s.k, .transpose_b = true}, accumulation,
      {a.data(), {s.a_format, {}, ScaleRule::kNone}, &one},
      {b.data(), {s.b_format, {}, ScaleRule::kNone}, &one}, d.data(), false);
  return d;
}

}  // namespace gnomon
