// Hopper's accumulation against a second model of it in whole numbers, and the products of scaled
// operands against plain loops.
#include "kernels/scaled_product.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/hopper_accumulate.h"
#include "tests/kernels/reference.h"
#include "tests/support/special_numbers.h"

namespace gnomon {
namespace {

constexpr uint32_t kCanonicalNan = 0x7FFFFFFFu;

// A number as sign · significand · 2^(exponent − fraction bits), from its own bits.
struct Pieces {
  bool negative = false;
  int64_t significand = 0;
  int exponent = 0;
  int fraction = 0;
  bool nan = false;
  bool infinite = false;
};

Pieces pieces_of_code(uint32_t code, bool e4m3) {
  const int mantissa_bits = e4m3 ? 3 : 2;
  const int bias = e4m3 ? 7 : 15;
  const int field = static_cast<int>(code >> mantissa_bits & (e4m3 ? 0xFu : 0x1Fu));
  const int64_t mantissa = code & ((1u << mantissa_bits) - 1);
  Pieces p;
  p.negative = (code & 0x80u) != 0;
  p.fraction = mantissa_bits;
  p.exponent = field == 0 ? 1 - bias : field - bias;
  p.significand = mantissa + (field == 0 ? 0 : int64_t{1} << mantissa_bits);
  if (e4m3) {
    p.nan = (code & 0x7Fu) == 0x7Fu;
  } else if (field == 31) {
    p.nan = mantissa != 0;
    p.infinite = mantissa == 0;
  }
  return p;
}

Pieces pieces_of_fp32(float value) {
  const uint32_t u = std::bit_cast<uint32_t>(value);
  const int field = static_cast<int>(u >> 23 & 0xFFu);
  Pieces p;
  p.negative = u >> 31 != 0;
  p.fraction = 23;
  p.exponent = field == 0 ? -126 : field - 127;
  p.significand = (u & 0x7FFFFFu) + (field == 0 ? 0u : 0x800000u);
  p.nan = field == 255 && (u & 0x7FFFFFu) != 0;
  p.infinite = field == 255 && (u & 0x7FFFFFu) == 0;
  return p;
}

// The magnitude in units of 2^(largest − bits), cut off.
int64_t aligned(const Pieces& p, int largest, int bits) {
  const int left = bits - p.fraction + p.exponent - largest;
  int64_t magnitude = 0;
  if (left >= 0) {
    magnitude = p.significand << left;
  } else if (left > -63) {
    magnitude = p.significand >> -left;
  }
  return p.negative ? -magnitude : magnitude;
}

// One instruction in whole numbers, written without a look at kernels/scaled_product.cc.
uint32_t model_bits(float c, const std::vector<uint32_t>& a, bool a_e4m3,
                    const std::vector<uint32_t>& b, bool b_e4m3, const TensorCoreSum& rule) {
  std::vector<Pieces> terms = {pieces_of_fp32(c)};
  for (size_t i = 0; i < a.size(); ++i) {
    const Pieces x = pieces_of_code(a[i], a_e4m3), y = pieces_of_code(b[i], b_e4m3);
    Pieces product;
    product.negative = x.negative != y.negative;
    product.significand = x.significand * y.significand;
    product.exponent = x.exponent + y.exponent;
    product.fraction = x.fraction + y.fraction;
    product.nan = x.nan || y.nan || (x.infinite && y.significand == 0 && !y.infinite) ||
                  (y.infinite && x.significand == 0 && !x.infinite);
    product.infinite = !product.nan && (x.infinite || y.infinite);
    terms.push_back(product);
  }
  bool nan = false, positive = false, negative = false;
  int largest = -100000;
  for (const Pieces& term : terms) {
    nan = nan || term.nan;
    if (term.infinite) (term.negative ? negative : positive) = true;
    if (term.significand != 0 || term.infinite) largest = std::max(largest, term.exponent);
  }
  if (nan || (positive && negative)) return kCanonicalNan;
  if (positive) return 0x7F800000u;
  if (negative) return 0xFF800000u;
  int64_t sum = 0;
  for (const Pieces& term : terms) {
    if (term.significand != 0) sum += aligned(term, largest, rule.fraction_bits);
  }
  if (sum == 0) return 0;
  uint64_t magnitude = static_cast<uint64_t>(sum < 0 ? -sum : sum);
  int exponent = largest - rule.fraction_bits;            // of the lowest bit
  while (magnitude >= uint64_t{2} << rule.result_bits) {  // bits that fall off are cut off
    magnitude >>= 1;
    ++exponent;
  }
  while (exponent < -126 - rule.result_bits) {
    magnitude >>= 1;
    ++exponent;
  }
  const float value = std::ldexp(static_cast<float>(magnitude), exponent);
  return std::bit_cast<uint32_t>(sum < 0 ? -value : value);
}

struct Codes {
  std::vector<uint32_t> codes;
  std::vector<float> values;
};

Codes decoded(std::vector<uint32_t> codes, Format format) {
  Codes result{std::move(codes), {}};
  for (uint32_t code : result.codes) result.values.push_back(decode(format, code));
  return result;
}

Codes random_codes(uint64_t key, uint64_t stream, Format format, uint32_t mask,
                   uint64_t count = kHopperTerms) {
  std::vector<uint32_t> codes;
  for (uint64_t i = 0; i < count; ++i) codes.push_back(philox(key, stream, i)[0] & mask);
  return decoded(std::move(codes), format);
}

void expect_model(float c, Format fa, const Codes& a, Format fb, const Codes& b,
                  const TensorCoreSum& rule = {}) {
  const float found = hopper_sum(c, fa, a.values, fb, b.values, rule);
  ASSERT_EQ(std::bit_cast<uint32_t>(found),
            model_bits(c, a.codes, fa == Format::kE4m3, b.codes, fb == Format::kE4m3, rule))
      << "c " << c << " found " << found;
}

const TensorCoreSum kOtherRules[] = {{16, 10, 10}, {16, 13, 23}, {32, 17, 17}, {32, 18, 18},
                                     {32, 23, 23}, {64, 13, 13}, {64, 16, 10}, {64, 23, 23}};

TEST(HopperSum, EqualsTheModelInWholeNumbersForRandomCodes) {
  for (Format fa : {Format::kE4m3, Format::kE5m2}) {
    for (Format fb : {Format::kE4m3, Format::kE5m2}) {
      for (uint64_t round = 0; round < 3000; ++round) {
        // All codes (NaN and Inf among them in E5M2 and E4M3), finite ones, small ones with
        // subnormals and zeros, and signs that cancel.
        const uint32_t mask = round % 4 == 0   ? 0xFFu
                              : round % 4 == 1 ? 0xBBu
                              : round % 4 == 2 ? 0x8Fu
                                               : 0xFBu;
        Codes a = random_codes(round, 1, fa, mask), b = random_codes(round, 2, fb, mask);
        for (float c :
             {0.0f, 1.0f, -0x1.8p20f, 0x1.fffp-12f, std::bit_cast<float>(philox(round, 3, 0)[0])}) {
          expect_model(c, fa, a, fb, b);
        }
      }
    }
  }
}

TEST(HopperSum, EqualsTheModelForOtherRulesOfTheSum) {
  for (const TensorCoreSum& rule : kOtherRules) {
    for (uint64_t round = 0; round < 500; ++round) {
      const uint32_t mask = round % 2 == 0 ? 0xBBu : 0x8Fu;
      const auto terms = static_cast<uint64_t>(rule.terms);
      Codes a = random_codes(round, 1, Format::kE4m3, mask, terms);
      Codes b = random_codes(round, 2, Format::kE5m2, mask, terms);
      for (float c : {0.0f, -0x1.8p20f, 0x1.fffffep-12f}) {
        expect_model(c, Format::kE4m3, a, Format::kE5m2, b, rule);
      }
    }
  }
}

TEST(HopperSum, CutsOffTowardsZeroAt13BitsBelowTheLargestExponent) {
  const Format f = Format::kE4m3;
  auto sum = [&](float c, std::vector<float> a, std::vector<float> b) {
    return hopper_sum(c, f, a, f, b);
  };
  EXPECT_EQ(sum(0, {256}, {256}), 65536.0f);
  // 2^-13 of the largest stays, what is below goes, on either side of zero.
  EXPECT_EQ(sum(0, {256, 8}, {256, 1}), 65544.0f);
  EXPECT_EQ(sum(0, {256, 7.5}, {256, 1}), 65536.0f);
  EXPECT_EQ(sum(0, {-256, -7.5}, {256, 1}), -65536.0f);
  EXPECT_EQ(sum(0, {256, -7.5}, {256, 1}), 65536.0f);
  // Thirty-one of them, each lost on its own.
  std::vector<float> many(32, 7.5f), ones(32, 1.0f);
  many[0] = ones[0] = 256;
  EXPECT_EQ(sum(0, many, ones), 65536.0f);
  // The sum's own bits: 2^14 + 1 needs 15 and loses the last.
  EXPECT_EQ(sum(16384, {1}, {1}), 16384.0f);
  EXPECT_EQ(sum(8192, {1}, {1}), 8193.0f);
  // What cancels leaves the cut-off terms, not zero.
  EXPECT_EQ(sum(65536, {-256, 8}, {256, 1}), 8.0f);
  // A product's exponent is the sum of its factors', though 1.5 · 1.5 = 2.25 is above 2: c is cut
  // off at 2^-13.
  EXPECT_EQ(sum(0x1p-13f, {1.5}, {1.5}), 2.25f);  // kept in the sum, lost in the write-back
  EXPECT_EQ(sum(0x1p-12f, {1.5}, {1.5}), 2.25f + 0x1p-12f);
  EXPECT_EQ(sum(0x1p-13f, {1.5, -1.5}, {1.5, 1.5}), 0x1p-13f);
  EXPECT_EQ(sum(0x1p-14f, {1.5, -1.5}, {1.5, 1.5}), 0.0f);
  // Zeros have no exponent: 448 · 0 cuts nothing off.
  EXPECT_EQ(sum(0x1p-20f, {448}, {0}), 0x1p-20f);
  // A subnormal has its format's smallest exponent: 2^-9 · 2^-6 has exponent -12.
  EXPECT_EQ(sum(0x1p-26f, {0x1p-9f, -0x1p-9f}, {0x1p-6f, 0x1p-6f}), 0.0f);
  EXPECT_EQ(sum(0x1p-25f, {0x1p-9f, -0x1p-9f}, {0x1p-6f, 0x1p-6f}), 0x1p-25f);
}

TEST(HopperSum, NanAndInfinity) {
  const Format f = Format::kE5m2;
  auto bits = [&](float c, std::vector<float> a, std::vector<float> b) {
    return std::bit_cast<uint32_t>(hopper_sum(c, f, a, f, b));
  };
  EXPECT_EQ(bits(0, {kNanF}, {1}), kCanonicalNan);
  EXPECT_EQ(bits(-kNanF, {1}, {1}), kCanonicalNan);
  EXPECT_EQ(bits(0, {kInfinityF}, {0}), kCanonicalNan);
  EXPECT_EQ(bits(-kInfinityF, {kInfinityF}, {1}), kCanonicalNan);
  EXPECT_EQ(bits(0, {-kInfinityF}, {1}), 0xFF800000u);
  EXPECT_EQ(bits(kInfinityF, {1}, {1}), 0x7F800000u);
}

// ---- whole products ----

struct Matrix {
  std::vector<bf16> values;
  std::vector<float> scales;
  Quantizer quantizer;
  int64_t rows = 0, columns = 0;

  ScaledOperand operand() const { return {values.data(), quantizer, scales.data()}; }
  float value(int64_t row, int64_t column) const {
    return to_float(values[static_cast<size_t>(row * columns + column)]);
  }
  float inverse(int64_t row, int64_t column) const {
    TileGrid grid = tile_grid(quantizer, rows, columns);
    return 1.0f / scales[static_cast<size_t>(row / grid.tile.rows * grid.columns +
                                             column / grid.tile.columns)];
  }
};

Matrix quantised(uint64_t key, int64_t rows, int64_t columns, const Quantizer& quantizer) {
  std::vector<bf16> x = random_bf16(key, rows * columns);
  for (size_t i = 0; i < x.size(); ++i) {  // magnitudes over thirty powers of two
    x[i] = to_bf16(std::ldexp(to_float(x[i]), static_cast<int>(philox(key, 9, i)[0] % 30) - 15));
  }
  Matrix m{std::vector<bf16>(x.size()), {}, quantizer, rows, columns};
  m.scales.resize(static_cast<size_t>(tile_grid(quantizer, rows, columns).count()));
  quantize_matrix(quantizer, x, rows, columns, 3.0f, m.values, m.scales);
  return m;
}

struct ProductCase {
  GemmShape shape;
  TileShape a, b;  // of the stored matrices
};

// Segment by segment, one element of C at a time.
float expected_element(const ProductCase& it, const Accumulation& accumulation, const Matrix& a,
                       const Matrix& b, int64_t i, int64_t j) {
  const GemmShape& s = it.shape;
  auto a_at = [&](int64_t k) { return s.transpose_a ? std::pair{k, i} : std::pair{i, k}; };
  auto b_at = [&](int64_t k) { return s.transpose_b ? std::pair{j, k} : std::pair{k, j}; };
  const int64_t a_length = s.transpose_a ? it.a.rows : it.a.columns;
  const int64_t b_length = s.transpose_b ? it.b.columns : it.b.rows;
  auto cut = [&](int64_t k) {
    auto at = [k](int64_t length) { return length > 0 && k % length == 0; };
    return k == s.k || at(a_length) || at(b_length) ||
           (accumulation.hopper && at(accumulation.promote_every));
  };
  float total = 0, partial = 0;
  std::vector<float> xs, ys;
  int64_t begin = 0;
  for (int64_t k = 0; k < s.k; ++k) {
    const float x = a.value(a_at(k).first, a_at(k).second);
    const float y = b.value(b_at(k).first, b_at(k).second);
    xs.push_back(x);
    ys.push_back(y);
    if (!accumulation.hopper) partial = partial + x * y;
    if (accumulation.hopper && (std::ssize(xs) == accumulation.sum.terms || cut(k + 1))) {
      partial =
          hopper_sum(partial, a.quantizer.format, xs, b.quantizer.format, ys, accumulation.sum);
      xs.clear();
      ys.clear();
    }
    if (!cut(k + 1)) continue;
    const float scale = a.inverse(a_at(begin).first, a_at(begin).second) *
                        b.inverse(b_at(begin).first, b_at(begin).second);
    total = std::fma(partial, scale, total);
    partial = 0;
    begin = k + 1;
  }
  return total;
}

void expect_product(const ProductCase& it, const Accumulation& accumulation, Matrix a, Matrix b) {
  cpu::ScaledProducts products(2);
  const auto size = static_cast<size_t>(it.shape.m * it.shape.n);
  std::vector<float> c(size), added(size, 1.0f);
  std::vector<bf16> rounded(size);
  products.run(it.shape, accumulation, a.operand(), b.operand(), c.data(), false);
  products.run(it.shape, accumulation, a.operand(), b.operand(), added.data(), true);
  products.run(it.shape, accumulation, a.operand(), b.operand(), rounded.data(), false);
  auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  for (int64_t i = 0; i < it.shape.m; ++i) {
    for (int64_t j = 0; j < it.shape.n; ++j) {
      const float expected = expected_element(it, accumulation, a, b, i, j);
      const auto at = static_cast<size_t>(i * it.shape.n + j);
      ASSERT_TRUE(same(c[at], expected)) << i << "," << j << ": " << c[at] << " for " << expected;
      ASSERT_TRUE(same(added[at], expected + 1.0f)) << i << "," << j;
      ASSERT_TRUE(same(to_float(rounded[at]), to_float(to_bf16(expected)))) << i << "," << j;
    }
  }
}

const ProductCase kFprop{{.m = 70, .n = 45, .k = 300, .transpose_b = true}, {1, 128}, {128, 128}};
const ProductCase kDgrad{{.m = 33, .n = 64, .k = 290}, {1, 128}, {128, 128}};
const ProductCase kWgrad{{.m = 40, .n = 37, .k = 270, .transpose_a = true}, {128, 1}, {128, 1}};
const ProductCase kRowwise{{.m = 20, .n = 33, .k = 600}, {1, 0}, {0, 1}};
const ProductCase kWhole{{.m = 5, .n = 40, .k = 1100, .transpose_b = true}, {0, 0}, {0, 0}};

std::pair<Matrix, Matrix> operands(const ProductCase& it, Format format_a, Format format_b) {
  const GemmShape& s = it.shape;
  Matrix a = s.transpose_a ? quantised(1, s.k, s.m, {format_a, it.a, ScaleRule::kFp32})
                           : quantised(1, s.m, s.k, {format_a, it.a, ScaleRule::kFp32});
  Matrix b = s.transpose_b ? quantised(2, s.n, s.k, {format_b, it.b, ScaleRule::kFp32})
                           : quantised(2, s.k, s.n, {format_b, it.b, ScaleRule::kFp32});
  return {std::move(a), std::move(b)};
}

TEST(ScaledProduct, EqualsPlainLoopsBitForBit) {
  for (const ProductCase& it : {kFprop, kDgrad, kWgrad, kRowwise, kWhole}) {
    for (const Accumulation& accumulation :
         {Accumulation{}, Accumulation{true, 128}, Accumulation{true, 32}, Accumulation{true, 0}}) {
      auto [a, b] = operands(it, Format::kE4m3, Format::kE4m3);
      expect_product(it, accumulation, a, b);
    }
    auto [a, b] = operands(it, Format::kE5m2, Format::kE4m3);
    expect_product(it, Accumulation{true, 128}, a, b);
  }
}

TEST(ScaledProduct, OtherRulesOfTheSumEqualPlainLoopsBitForBit) {
  for (const TensorCoreSum& rule : kOtherRules) {
    auto [a, b] = operands(kFprop, Format::kE4m3, Format::kE5m2);
    expect_product(kFprop, Accumulation{true, 64, rule}, a, b);
    expect_product(kFprop, Accumulation{true, 0, rule}, a, b);
    a.values[300 * 3 + 260] = to_bf16(kNanF);
    expect_product(kFprop, Accumulation{true, 64, rule}, a, b);
  }
}

TEST(ScaledProduct, NanStaysInItsRowAndColumn) {
  for (bool hopper : {false, true}) {
    auto [a, b] = operands(kFprop, Format::kE4m3, Format::kE4m3);
    a.values[300 * 3 + 260] = to_bf16(kNanF);
    b.values[300 * 7 + 2] = to_bf16(kNanF);
    expect_product(kFprop, Accumulation{hopper, 128}, a, b);
  }
}

TEST(ScaledProduct, HopperLosesWhatFp32KeepsAndPromotionSavesSomeOfIt) {
  auto both = operands(kWhole, Format::kE4m3, Format::kE4m3);
  Matrix &a = both.first, &b = both.second;
  for (bf16& value : a.values) value = to_bf16(std::abs(to_float(value)));
  for (bf16& value : b.values) value = to_bf16(std::abs(to_float(value)));
  auto error = [&](const Accumulation& accumulation) {
    double gap = 0, size = 0;
    for (int64_t j = 0; j < kWhole.shape.n; ++j) {
      double exact = 0;
      for (int64_t k = 0; k < kWhole.shape.k; ++k) {
        exact += static_cast<double>(a.value(0, k)) * static_cast<double>(b.value(j, k));
      }
      exact *= static_cast<double>(a.inverse(0, 0)) * static_cast<double>(b.inverse(0, 0));
      gap +=
          std::abs(static_cast<double>(expected_element(kWhole, accumulation, a, b, 0, j)) - exact);
      size += exact;
    }
    return gap / size;
  };
  EXPECT_LT(error(Accumulation{}), 1e-5);
  EXPECT_GT(error(Accumulation{true, 128}), 10 * error(Accumulation{}));
  EXPECT_GT(error(Accumulation{true, 0}), 2 * error(Accumulation{true, 128}));
}

}  // namespace
}  // namespace gnomon
