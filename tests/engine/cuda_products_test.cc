// Products of rounded operands on the CUDA backend, emulated or on a GPU, against the CPU's: with
// scales that differ much between neighbours, so that one which is taken for another is seen.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "base/philox.h"
#include "kernels/devices.h"
#include "tests/engine/tested_backends.h"
#include "trainer/engine/scaling.h"

namespace gnomon::test {
namespace {

// No multiples of 128 but of 16, and five blocks of terms: rows of squares' scales are padded.
constexpr int64_t kM = 144, kN = 272, kK = 640;
constexpr int64_t kPart = 128;

std::vector<bf16> uneven(int64_t rows, int64_t columns, uint64_t key) {
  std::vector<bf16> x;
  x.reserve(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const auto at = static_cast<uint64_t>(r * columns + c);
      const float value = 2 * philox_uniform(philox(key, 0, at)[0]) - 1;
      const int64_t power = 8 * ((r / kPart + c / kPart) % 2) + 4 * (r % 2) + 2 * (c % 3);
      x.push_back(to_bf16(std::ldexp(value, static_cast<int>(power))));
    }
  }
  return x;
}

struct Side {
  std::vector<bf16> values;
  int64_t columns = 0;
  bool transposed = false;  // the product sums over its rows
  Quantizer quantizer;
};

struct Problem {
  GemmShape shape{.m = kM, .n = kN, .k = kK};
  Side a, b;
};

Problem problem_of(const std::string& recipe, Gemm gemm, bool power_of_two) {
  GemmPrecision precision =
      PrecisionPlan::fp8(recipe_from_name(recipe)).resolve("model.layers.0.x", 1)[gemm];
  precision.power_of_two = power_of_two;
  const TensorRole left = gemm == Gemm::kFprop ? TensorRole::kInput : TensorRole::kGradient;
  const TensorRole right = gemm == Gemm::kWgrad ? TensorRole::kInput : TensorRole::kWeight;
  Problem it;
  it.shape.transpose_a = gemm == Gemm::kWgrad;
  it.shape.transpose_b = gemm == Gemm::kFprop;
  const auto side = [&](int64_t outer, bool terms_last, TensorRole role, uint64_t key) {
    Side made;
    made.columns = terms_last ? kK : outer;
    made.values = uneven(kK * outer / made.columns, made.columns, key);
    made.transposed = !terms_last;
    made.quantizer = quantizer_for(precision, role, gemm);
    return made;
  };
  it.a = side(kM, !it.shape.transpose_a, left, 1);
  it.b = side(kN, it.shape.transpose_b, right, 2);
  return it;
}

// The operands of a problem in a backend's memory.
class Operands {
 public:
  Operands(Backend& backend, const Problem& it)
      : backend_(backend), a_(backend.memory()), b_(backend.memory()) {
    keeps_ = backend.keeps_scales({}, it.a.quantizer, it.b.quantizer,
                                  it.shape.transpose_a);  // as the engine: wgrad in FP32
    prepare(a_, it.a);
    prepare(b_, it.b);
  }
  bool keeps_scales() const { return keeps_; }

  // C[kM, kN], before which there was `before` in each place where it is added to.
  template <class T>
  std::vector<T> product(const GemmShape& shape, bool accumulate, T before = {}) {
    Buffer<T> c(backend_.memory());
    std::vector<T> found(static_cast<size_t>(kM * kN), before);
    const std::span<T> there = c.at_least(kM * kN);
    write_from_host(backend_.memory(), std::span<const T>(found), there);
    const GemmOperand<bf16>* right = &b_.operand.operand();
    if constexpr (std::is_same_v<T, float>) {
      backend_.gemm(shape, Accumulation{}, a_.operand.operand(), *right, there.data(), accumulate);
    } else {
      backend_.gemm(shape, Accumulation{}, a_.operand.operand(), std::span(&right, 1),
                    there.data());
    }
    const HostView<T> view(backend_.memory(), std::span<const T>(there));
    std::ranges::copy(view, found.begin());
    return found;
  }

 private:
  struct Room {
    explicit Room(Memory& memory) : values(memory), operand(memory) {}
    Buffer<bf16> values;
    OwnOperand<bf16> operand;
  };
  void prepare(Room& room, const Side& side) {
    const std::span<bf16> there = room.values.at_least(std::ssize(side.values));
    write_from_host(backend_.memory(), std::span<const bf16>(side.values), there);
    GemmOperand<bf16>& operand = room.operand.of(there);
    Rounding rounding;
    rounding.quantises = true;
    rounding.quantizer = side.quantizer;
    rounding.keeps_scales = keeps_;
    if (rounding.whole_tensor()) backend_.amax(operand.data, operand.scalars + kAmax);
    backend_.quantize(operand, std::ssize(side.values) / side.columns, side.columns, rounding,
                      side.transposed ? kTransposed : kAsStored);
  }

  Backend& backend_;
  bool keeps_ = false;
  Room a_, b_;
};

double value(float x) { return x; }
double value(bf16 x) { return to_float(x); }

// 1 − 2⟨x, y⟩ / (‖x‖² + ‖y‖²), as DeepGEMM compares matrices.
template <class T>
double difference(const std::vector<T>& x, const std::vector<T>& y) {
  double products = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    products += value(x[i]) * value(y[i]);
    squares += value(x[i]) * value(x[i]) + value(y[i]) * value(y[i]);
  }
  return 1 - 2 * products / squares;
}

// The same for the rows with the smallest values alone, of which the whole would tell nothing.
template <class T>
double difference_of_small_rows(const std::vector<T>& x, const std::vector<T>& y) {
  std::vector<T> of_x, of_y;
  for (int64_t r = 0; r < kM; r += 2) {
    const auto begin = r * kN;
    of_x.insert(of_x.end(), x.begin() + begin, x.begin() + begin + kN);
    of_y.insert(of_y.end(), y.begin() + begin, y.begin() + begin + kN);
  }
  return difference(of_x, of_y);
}

struct Mode {
  const char* recipe;
  bool power_of_two;
};

class CudaProducts : public testing::TestWithParam<Mode> {
 protected:
  // Tensor cores sum with fewer bits than FP32 has; a scale of another row is a factor of 16.
  static constexpr double kDifferenceMax = 1e-5;
  void SetUp() override { device->expect_products({{kM, kN, kK, false}, {kM, kN, kK, true}}); }
  const std::unique_ptr<Backend> device = tested_backends().bf16(2);
  const std::unique_ptr<Backend> cpu = backend_makers(Device::kCpu).bf16(2);
};

TEST_P(CudaProducts, AreTheCpusWithEveryScaleInItsPlace) {
  for (Gemm gemm : {Gemm::kFprop, Gemm::kDgrad, Gemm::kWgrad}) {
    SCOPED_TRACE(gemm_name(gemm));
    const Problem it = problem_of(GetParam().recipe, gemm, GetParam().power_of_two);
    Operands there(*device, it), here(*cpu, it);
    EXPECT_TRUE(there.keeps_scales()) << "codes are to be multiplied";
    for (bool accumulate : {false, true}) {
      const auto found = there.product<float>(it.shape, accumulate, 1000);
      const auto expected = here.product<float>(it.shape, accumulate, 1000);
      EXPECT_LT(difference(found, expected), kDifferenceMax) << accumulate;
      EXPECT_LT(difference_of_small_rows(found, expected), kDifferenceMax) << accumulate;
    }
    if (gemm == Gemm::kWgrad) continue;  // is added up in FP32
    const auto found = there.product<bf16>(it.shape, false);
    const auto expected = here.product<bf16>(it.shape, false);
    EXPECT_LT(difference(found, expected), kDifferenceMax);
    EXPECT_LT(difference_of_small_rows(found, expected), kDifferenceMax);
  }
}

INSTANTIATE_TEST_SUITE_P(Recipes, CudaProducts,
                         testing::Values(Mode{"current", false}, Mode{"rowwise", false},
                                         Mode{"rowwise", true}, Mode{"block", false},
                                         Mode{"block", true}),
                         [](const auto& at) {
                           return std::string(at.param.recipe) +
                                  (at.param.power_of_two ? "_power_of_two" : "");
                         });

}  // namespace
}  // namespace gnomon::test
