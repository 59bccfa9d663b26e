// What ranks send from device to device, with kernels that are emulated on the CPU and memory that
// the host is not meant to touch, beside what the CPU sends: the same bits.
#include "kernels/cuda/device_wires.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/philox.h"
#include "kernels/comm/compressed_collectives.h"
#include "kernels/comm/wire_shares.h"
#include "tests/ranks/emulated_ranks.h"
#include "tests/ranks/ranks.h"

namespace gnomon::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Values of all sizes, with blocks that are zero, tiny, huge or not finite.
template <class E>
std::vector<E> values_of(int rank, int64_t count) {
  std::vector<E> values;
  for (int64_t i = 0; i < count; ++i) {
    const auto words = philox(11, static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
    float value = (philox_uniform(words[0]) - 0.5f) * std::exp2(static_cast<float>(i % 19) - 9);
    const int64_t block = i / 128;
    if (block % 7 == 1) value = 0;
    if (block % 7 == 2) value *= 1e-36f;
    if (block % 7 == 3) value *= 1e33f;
    if (block % 31 == 4 && i % 128 == 77) value = rank == 0 ? kInfinity : value;
    if (block % 31 == 5 && i % 128 == 3) value = rank == 1 ? kNan : value;
    if (block % 31 == 6 && i % 128 == 99) value = -kInfinity;
    values.push_back(from_float<E>(value));
  }
  return values;
}

// Without what is not finite: there a scale by tensor is NaN, and all of it with it.
template <class E>
std::vector<E> finite_values_of(int rank, int64_t count) {
  std::vector<E> values = values_of<E>(rank, count);
  for (E& value : values) {
    if (!std::isfinite(to_float(value))) value = from_float<E>(-3.0f);
  }
  return values;
}

template <class E>
void expect_same(const std::vector<E>& found, const std::vector<E>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    const float x = to_float(found[i]), y = to_float(expected[i]);
    ASSERT_TRUE(std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y) ||
                (std::isnan(x) && std::isnan(y)))
        << "element " << i << ": " << x << " for " << y;
  }
}

struct Way {
  std::string format;
  std::string exchange = "host";
};

class DeviceWires : public testing::TestWithParam<Way> {
 protected:
  std::unique_ptr<cuda::DeviceExchange> exchange() {
#ifdef GNOMON_NCCL_FOUND
    if (GetParam().exchange == "nccl") {
      return cuda::make_nccl_exchange(collectives(), nullptr, std::make_unique<EmptyStream>(), 60);
    }
#endif
    return cuda::make_host_exchange(collectives(), memory_);
  }
  template <class E>
  void expect_weights_of_the_cpu(const WireLayout& layout, bool finite);
  template <class E>
  void expect_kept_of_the_cpu(const WireLayout& layout, bool finite);

  // Parts that are empty, that end inside a block, of more than one thread block, and of more than
  // one round.
  static constexpr int64_t kInFlight = 4096;
  static constexpr int64_t kCounts[] = {1, 129, 4096, 40'037};

  static WireLayout layout_of(int64_t count) {
    std::vector<int64_t> tensors{0};
    for (int64_t start : {32, 96, 4128, 12'320}) {
      if (start < count) tensors.push_back(start);
    }
    return {Partition::even(count, collectives().size(), 128), tensors};
  }

  WireFormat format_ = wire_format_from_name(GetParam().format);
  FarMemory memory_;
};

TEST_P(DeviceWires, GradientsAreThoseOfTheCpu) {
  for (const int64_t count : kCounts) {
    for (const bool finite : {false, true}) {
      SCOPED_TRACE(count);
      const WireLayout layout = layout_of(count);
      CompressedCollectives cpu(collectives(), layout, 1);
      const auto way = exchange();
      const auto device = cuda::make_device_wires(*way, memory_, nullptr, layout, kInFlight);
      std::vector<float> expected = finite ? finite_values_of<float>(collectives().rank(), count)
                                           : values_of<float>(collectives().rank(), count);
      std::vector<float> found = expected;
      for (int again = 0; again < 2; ++again) {
        cpu.reduce_scatter(format_, expected);
        device->reduce_scatter(format_, found);
        expect_same(found, expected);
      }
    }
  }
}

template <class E>
void DeviceWires::expect_weights_of_the_cpu(const WireLayout& layout, bool finite) {
  CompressedCollectives cpu(collectives(), layout, 1);
  const auto way = exchange();
  const auto device = cuda::make_device_wires(*way, memory_, nullptr, layout, kInFlight);
  // Each has its own part; what it holds of the others' is old.
  std::vector<E> expected = finite ? finite_values_of<E>(collectives().rank(), layout.elements())
                                   : values_of<E>(collectives().rank(), layout.elements());
  std::vector<E> found = expected;
  cpu.all_gather(format_, std::span(expected));
  device->all_gather(format_, std::span(found));
  expect_same(found, expected);
}

TEST_P(DeviceWires, WeightsAreThoseOfTheCpu) {
  for (const int64_t count : kCounts) {
    for (const bool finite : {false, true}) {
      SCOPED_TRACE(count);
      expect_weights_of_the_cpu<bf16>(layout_of(count), finite);
      expect_weights_of_the_cpu<float>(layout_of(count), finite);
    }
  }
}

// Pieces of unlike sizes that every rank keeps a part of, and one that all keep.
WireShares shares_of(int64_t count) {
  std::vector<std::vector<WireRange>> keeps;
  const int ranks = collectives().size();
  const int64_t middle = count / 3 / 128 * 128, last = count * 7 / 8 / 128 * 128;
  for (const WireRange& piece : {WireRange{0, middle}, WireRange{middle, last}}) {
    const Partition parts = Partition::even(piece.size(), ranks, 128);
    std::vector<WireRange>& by_rank = keeps.emplace_back();
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t begin = piece.begin + parts.begin(rank);
      by_rank.push_back({begin, begin + parts.size(rank)});
    }
  }
  keeps.emplace_back(static_cast<size_t>(ranks), WireRange{last, count});
  return WireShares(std::move(keeps));
}

template <class E>
void DeviceWires::expect_kept_of_the_cpu(const WireLayout& layout, bool finite) {
  CompressedCollectives cpu(collectives(), layout, 1);
  const auto way = exchange();
  const auto device = cuda::make_device_wires(*way, memory_, nullptr, layout, kInFlight);
  const std::vector<E> all = finite ? finite_values_of<E>(collectives().rank(), layout.elements())
                                    : values_of<E>(collectives().rank(), layout.elements());
  const std::span<const E> part = layout.parts().of(std::span(all), collectives().rank());
  const WireShares shares = shares_of(layout.elements());
  std::vector<E> expected(static_cast<size_t>(shares.kept(collectives().rank())));
  std::vector<E> found = expected;
  cpu.redistribute(format_, shares, part, std::span(expected));
  device->redistribute(format_, shares, part, std::span(found));
  expect_same(found, expected);
}

TEST_P(DeviceWires, KeptWeightsAreThoseOfTheCpu) {
  for (const int64_t count : kCounts) {
    for (const bool finite : {false, true}) {
      SCOPED_TRACE(count);
      expect_kept_of_the_cpu<bf16>(layout_of(count), finite);
      expect_kept_of_the_cpu<float>(layout_of(count), finite);
    }
  }
}

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const char* format : {"full", "e4m3", "e5m2", "e4m3:tensor", "e5m2:tensor"}) {
    all.push_back({format});
#ifdef GNOMON_NCCL_FOUND
    all.push_back({format, "nccl"});
#endif
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Ways, DeviceWires, testing::ValuesIn(ways()), [](const auto& instance) {
  std::string name = instance.param.format + "_" + instance.param.exchange;
  std::ranges::replace(name, ':', '_');
  return name;
});

}  // namespace
}  // namespace gnomon::test
