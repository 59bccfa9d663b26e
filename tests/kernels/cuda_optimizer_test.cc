// The device's optimizer, on a device or by emulation on the CPU, against the CPU's.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/hash.h"
#include "kernels/cpu/ops.h"
#include "kernels/cuda/hash.h"
#include "kernels/cuda/optimizer.h"
#include "tests/kernels/device_support.h"
#include "tests/kernels/reference.h"

namespace gnomon::cuda {
namespace {

using test::changed, test::device_stream, test::given, test::OnDevice;

// Moments of a format, in memory of the host.
struct Stored {
  Stored(MomentFormat format, int64_t count) {
    const auto size = static_cast<size_t>(count);
    if (format == MomentFormat::kFp32) {
      fp32.resize(size);
      span = std::span(fp32);
    } else if (format == MomentFormat::kBf16) {
      in_bf16.resize(size);
      span = std::span(in_bf16);
    } else {
      codes.resize(size);
      scales.resize(static_cast<size_t>(moment_blocks(count)));
      span = Fp8Moments{codes, scales};
    }
  }
  std::vector<float> fp32, scales;
  std::vector<bf16> in_bf16;
  std::vector<uint8_t> codes;
  MomentSpan span;
};

// The same on the device; read() brings them back.
struct StoredOnDevice {
  explicit StoredOnDevice(Stored& of)
      : host(of), fp32(of.fp32), scales(of.scales), in_bf16(of.in_bf16), codes(of.codes) {
    if (!of.fp32.empty()) {
      span = fp32.span();
    } else if (!of.in_bf16.empty()) {
      span = in_bf16.span();
    } else {
      span = Fp8Moments{codes.span(), scales.span()};
    }
  }
  void read() const {
    fp32.read(host.fp32);
    scales.read(host.scales);
    in_bf16.read(host.in_bf16);
    codes.read(host.codes);
  }

  Stored& host;
  OnDevice<float> fp32, scales;
  OnDevice<bf16> in_bf16;
  OnDevice<uint8_t> codes;
  MomentSpan span;
};

struct Case {
  MomentFormat first, second;
  OptimizerKind optimizer = OptimizerKind::kAdamw;
};
class CudaUpdate : public testing::TestWithParam<Case> {};

TEST_P(CudaUpdate, TakesTheStepsThatTheCpuTakes) {
  const bool has_second = optimizer_row(GetParam().optimizer).has(Moment::kSecond);
  const auto spans = [&](const MomentSpan& m, const MomentSpan& v) {
    return MomentSpans{m, has_second ? v : MomentSpan()};
  };
  for (const int64_t count : {1, 130, 4099}) {
    std::vector<float> master = random_floats(1, count, 1.0f), cpu_master = master;
    std::vector<bf16> weight(master.size()), cpu_weight = weight;
    Stored m(GetParam().first, count), v(GetParam().second, count);
    Stored cpu_m(GetParam().first, count), cpu_v(GetParam().second, count);
    StateSums before;
    for (int step = 1; step <= 3; ++step) {
      const std::vector<float> gradient =
          random_floats(static_cast<uint64_t>(10 + step), count, 0.3f);
      const UpdateStep how{.learning_rate = 1e-2f,
                           .beta1 = 0.9f,
                           .beta2 = 0.95f,
                           .eps = 1e-8f,
                           .weight_decay = 0.1f,
                           .bias_correction1 = 1 - std::pow(0.9f, static_cast<float>(step)),
                           .bias_correction2 = 1 - std::pow(0.95f, static_cast<float>(step)),
                           .gradient_scale = 0.5f,
                           .decayed = count / 2,
                           .seed = 7,
                           .step = step,
                           .first_element = 3 * kMomentBlock,
                           .optimizer = GetParam().optimizer};
      const OnDevice<float> its_gradient(gradient);
      OnDevice<float> its_master(master);
      OnDevice<bf16> its_weight(weight);
      const StoredOnDevice its_m(m), its_v(v);
      OnDevice<StateSums> its_sums(std::vector<StateSums>(1));
      update(how, {its_gradient.data(), gradient.size()}, spans(its_m.span, its_v.span),
             its_master.span(), its_weight.span(), its_sums.data(), device_stream());
      StateSums sums;
      its_sums.read(std::span(&sums, 1));
      its_master.read(master);
      its_weight.read(weight);
      its_m.read();
      its_v.read();
      const StateSums cpu_sums = cpu::update<bf16>(2, how, gradient, spans(cpu_m.span, cpu_v.span),
                                                   cpu_master, cpu_weight);
      ASSERT_EQ(sums.read, step == 1 ? cpu_sums.read : before.written);
      before = sums;
      int64_t differ = 0;
      for (size_t i = 0; i < master.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        ASSERT_NEAR(master[i], cpu_master[i], 2e-6) << count << " step " << step << " at " << i;
        ASSERT_NEAR(to_float(weight[i]), master[i], std::abs(master[i]) * 0x1p-8f);
        const float own = moment_value(v.span, Format::kE5m2, at);
        const float cpus = moment_value(cpu_v.span, Format::kE5m2, at);
        // Where a value lies at the border between two codes the last bit decides.
        differ += std::abs(own - cpus) > 1e-5f * std::abs(cpus) ? 1 : 0;
        differ += std::abs(moment_value(m.span, Format::kE4m3, at) -
                           moment_value(cpu_m.span, Format::kE4m3, at)) >
                          1e-5f * std::abs(moment_value(cpu_m.span, Format::kE4m3, at)) + 1e-9f
                      ? 1
                      : 0;
      }
      EXPECT_LE(differ, 1 + count / 500);
    }
  }
}
using Kept = MomentFormat;
INSTANTIATE_TEST_SUITE_P(Adamw, CudaUpdate,
                         testing::Values(Case{Kept::kFp32, Kept::kFp32},
                                         Case{Kept::kBf16, Kept::kFp32},
                                         Case{Kept::kFp8, Kept::kBf16},
                                         Case{Kept::kFp8, Kept::kFp8}));
INSTANTIATE_TEST_SUITE_P(Lion, CudaUpdate,
                         testing::Values(Case{Kept::kFp32, Kept::kFp32, OptimizerKind::kLion},
                                         Case{Kept::kBf16, Kept::kFp32, OptimizerKind::kLion},
                                         Case{Kept::kFp8, Kept::kFp32, OptimizerKind::kLion}));

TEST(CudaSquares, AreSummedUpAsExactlyAsOnTheCpu) {
  std::vector<double> scratch(kSquaresScratch, NAN);
  for (const int64_t count : {1, 3, 4096, 100'001}) {
    const std::vector<float> x = random_floats(2, count, 3.0f);
    double sum = -1;
    sum_of_squares(given(x), count, changed(sum), changed(scratch), device_stream());
    const double expected = cpu::sum_of_squares(2, x);
    EXPECT_NEAR(sum, expected, 1e-12 * expected) << count;
  }
}

TEST(CudaHash, IsTheCpus) {
  for (const int64_t bytes : {0, 1, 7, 8, 4096, 100'003}) {
    std::vector<uint64_t> words(static_cast<size_t>(bytes / 8 + 1));
    for (size_t i = 0; i < words.size(); ++i) words[i] = 0x0123456789ABCDEF * (i + 1);
    const std::span all(reinterpret_cast<const std::byte*>(words.data()),
                        static_cast<size_t>(bytes));
    for (const uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 40}) {
      const uint64_t expected = PlacedHash::terms(words.data(), all.size(), first);
      uint64_t sum = 99;  // it is added to
      hash_terms(given(words), bytes, first, changed(sum), device_stream());
      EXPECT_EQ(sum - 99, expected) << bytes << " " << first;
      for (int threads : {1, 3}) {
        EXPECT_EQ(cpu::hash_terms(threads, all, first), expected) << bytes << " " << first;
      }
    }
  }
}

}  // namespace
}  // namespace gnomon::cuda
