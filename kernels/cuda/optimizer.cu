#include "base/errors.h"
#include "base/philox.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/moment_codes.h"

namespace gnomon::cuda {
namespace {

constexpr int kPerLane = kMomentBlock / kWarp;  // a warp takes a block of moments
constexpr uint64_t kMomentStream = 0x6D6F6D65;  // as the CPU's

struct Four {
  float values[kPerLane] = {};
  __device__ float& operator[](int i) { return values[i]; }
  __device__ float operator[](int i) const { return values[i]; }
};

// `left` of the four exist. Loops of a fixed length are unrolled, so that the four stay in
// registers.
__device__ Four load_four(const float* x, int64_t left) {
  Four four;
  if (left >= kPerLane) {
    const Bits128 v = *reinterpret_cast<const Bits128*>(x);
    four[0] = float_of(v.x), four[1] = float_of(v.y), four[2] = float_of(v.z),
    four[3] = float_of(v.w);
    return four;
  }
  for (int i = 0; i < kPerLane; ++i) {
    if (i < left) four[i] = x[i];
  }
  return four;
}
__device__ void store_four(float* y, const Four& four, int64_t left) {
  if (left >= kPerLane) {
    *reinterpret_cast<Bits128*>(y) = {bits_of(four[0]), bits_of(four[1]), bits_of(four[2]),
                                      bits_of(four[3])};
    return;
  }
  for (int i = 0; i < kPerLane; ++i) {
    if (i < left) y[i] = four[i];
  }
}

// The sum of the bits of those that exist.
__device__ uint32_t sum_bits(const Four& four, int64_t left = kPerLane) {
  uint32_t sum = 0;
  for (int i = 0; i < kPerLane; ++i) sum += i < left ? bits_of(four[i]) : 0;
  return sum;
}

// Four that are stored in less: as one, where all four exist.
template <class T>
struct alignas(kPerLane * sizeof(T)) Together {
  T values[kPerLane] = {};
};
template <class T>
__device__ Together<T> load_together(const T* x, int64_t left) {
  if (left >= kPerLane) return *reinterpret_cast<const Together<T>*>(x);
  Together<T> four;
  for (int i = 0; i < kPerLane; ++i) {
    if (i < left) four.values[i] = x[i];
  }
  return four;
}
template <class T>
__device__ void store_together(T* y, const Together<T>& four, int64_t left) {
  if (left >= kPerLane) {
    *reinterpret_cast<Together<T>*>(y) = four;
    return;
  }
  for (int i = 0; i < kPerLane; ++i) {
    if (i < left) y[i] = four.values[i];
  }
}

// ---- stored moments: FP32, BF16 or codes with a scale for each block ----
struct PlainMoments {
  float* values;
  template <class Codes>
  __device__ Four load(int64_t at, int64_t left, uint32_t& sum) const {
    const Four four = load_four(values + at, left);
    sum += sum_bits(four);
    return four;
  }
  template <class Codes>
  __device__ void store(int64_t at, int64_t left, const Four& moments, const Four*, uint32_t,
                        uint32_t& sum) const {
    store_four(values + at, moments, left);
    sum += sum_bits(moments, left);
  }
};

// Element `lane` of the block has random bits of its own; what would be stored as zero and must not
// (`floor`) is stored as the smallest code.
struct Bf16Moments {
  bf16* values;
  template <class Codes>
  __device__ Four load(int64_t at, int64_t left, uint32_t& sum) const {
    const Together<bf16> stored = load_together(values + at, left);
    Four four;
    for (int i = 0; i < kPerLane; ++i) {
      four[i] = value_of(stored.values[i]);
      sum += stored.values[i].bits;
    }
    return four;
  }
  template <class Codes>
  __device__ void store(int64_t at, int64_t left, const Four& moments, const Four* floor,
                        uint32_t key, uint32_t& sum) const {
    Together<bf16> stored;
    for (int i = 0; i < kPerLane; ++i) {
      bf16& code = stored.values[i];
      code = bf16_code(moments[i], random16(key, (at + i) % kMomentBlock));
      const bool keep = floor != nullptr && (moments[i] != 0.0f || (*floor)[i] != 0.0f);
      if (code.bits == 0 && keep) code.bits = 1;
      if (i < left) sum += code.bits;
    }
    store_together(values + at, stored, left);
  }
};

struct CodedMoments {
  uint8_t* codes;
  float* scales;
  template <class Codes>
  __device__ Four load(int64_t at, int64_t left, uint32_t& sum) const {
    Four four;
    if (left <= 0) return four;
    const float scale = scales[at / kMomentBlock];
    if (at % kMomentBlock == 0) sum += bits_of(scale);
    const Together<uint8_t> stored = load_together(codes + at, left);
    for (int i = 0; i < kPerLane; ++i) {
      four[i] = fp8_value<Codes>(stored.values[i]) * scale;
      sum += stored.values[i];
    }
    return four;
  }
  template <class Codes>
  __device__ void store(int64_t at, int64_t left, const Four& moments, const Four* floor,
                        uint32_t key, uint32_t& sum) const {
    float amax = 0;
    for (int i = 0; i < kPerLane; ++i) {
      if (i < left) amax = fmaxf(amax, fabsf(moments[i]));
    }
    amax = warp_reduce(amax, Largest());
    const float scale = moment_scale<Codes>(amax);
    const float inverse = quotient(1.0f, scale);
    if (at % kMomentBlock == 0 && left > 0) {
      scales[at / kMomentBlock] = scale;
      sum += bits_of(scale);
    }
    Together<uint8_t> stored;
    for (int i = 0; i < kPerLane; ++i) {
      uint8_t& code = stored.values[i];
      code = fp8_code<Codes>(moments[i] * inverse, random16(key, (at + i) % kMomentBlock));
      const bool keep = floor != nullptr && (moments[i] != 0.0f || (*floor)[i] != 0.0f);
      if (code == 0 && keep) code = 1;
      if (i < left) sum += code;
    }
    store_together(codes + at, stored, left);
  }
};

// The second moments where an optimizer has none: nothing is read or written.
struct NoMoments {
  template <class Codes>
  __device__ Four load(int64_t, int64_t, uint32_t&) const {
    return {};
  }
  template <class Codes>
  __device__ void store(int64_t, int64_t, const Four&, const Four*, uint32_t, uint32_t&) const {}
};

template <class Rule, class M, class V>
__global__ void update_kernel(UpdateStep step, Rule rule, int64_t count,
                              const float* __restrict__ gradient, M m, V v,
                              float* __restrict__ master, bf16* __restrict__ weight, uint32_t* read,
                              uint32_t* written) {
  GNOMON_SHARED(uint32_t, room, [kWarp]);
  uint32_t bits_read = 0, bits_written = 0;
  // Whole warps come here and stay: blocks of moments are summed up by their warp.
  const int64_t block = global_thread() / kWarp;
  const int64_t at = block * kMomentBlock + threadIdx.x % kWarp * kPerLane;
  const int64_t left = count - at;
  const Four g = load_four(gradient + at, left);
  Four first = m.template load<E4m3Codes>(at, left, bits_read);
  Four second = v.template load<E5m2Codes>(at, left, bits_read);
  Four value = load_four(master + at, left);
  bits_read += sum_bits(value);
  for (int i = 0; i < kPerLane; ++i) {
    const float scaled = g[i] * step.gradient_scale;
    const float decay = at + i < step.decayed ? step.weight_decay : 0.0f;
    // Before the rest: which products nvcc makes one with a sum depends on the order.
    const float change = rule.step(scaled, first[i], second[i]);
    value[i] = value[i] * (1.0f - step.learning_rate * decay) - change;
  }
  const auto keys = philox(step.seed ^ (kMomentStream << 32), static_cast<uint64_t>(step.step),
                           static_cast<uint64_t>(step.first_element / kMomentBlock + block));
  m.template store<E4m3Codes>(at, left, first, nullptr, keys[0], bits_written);
  v.template store<E5m2Codes>(at, left, second, &first, keys[1], bits_written);
  store_four(master + at, value, left);
  bits_written += sum_bits(value, left);
  Together<bf16> rounded_values;
  for (int i = 0; i < kPerLane; ++i) rounded_values.values[i] = rounded(value[i]);
  store_together(weight + at, rounded_values, left);
  bits_read = block_reduce(bits_read, uint32_t{0}, room, Add());
  bits_written = block_reduce(bits_written, uint32_t{0}, room, Add());
  if (threadIdx.x != 0) return;
  atomicAdd(read, bits_read);
  atomicAdd(written, bits_written);
}

__global__ void squares_kernel(const float* __restrict__ x, int64_t count, double* partials) {
  GNOMON_SHARED(double, room, [kWarp]);
  double own = 0;
  for (int64_t i = global_thread() * kPerLane; i < count; i += all_threads() * kPerLane) {
    const Four four = load_four(x + i, count - i);
    for (int k = 0; k < kPerLane; ++k) {
      own += static_cast<double>(four[k]) * static_cast<double>(four[k]);
    }
  }
  own = block_reduce(own, 0.0, room, Add());
  if (threadIdx.x == 0) partials[blockIdx.x] = own;
}

__global__ void add_doubles_kernel(const double* partials, int64_t count, double* sum) {
  GNOMON_SHARED(double, room, [kWarp]);
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) own += partials[i];
  own = block_reduce(own, 0.0, room, Add());
  if (threadIdx.x == 0) *sum = own;
}

PlainMoments stored(std::span<float> moments) { return {moments.data()}; }
Bf16Moments stored(std::span<bf16> moments) { return {moments.data()}; }
CodedMoments stored(const Fp8Moments& moments) {
  return {moments.codes.data(), moments.scales.data()};
}

}  // namespace

void update(const UpdateStep& step, std::span<const float> gradient, const MomentSpans& moments,
            std::span<float> master, std::span<bf16> weight, StateSums* sums, Stream stream) {
  const int64_t count = std::ssize(gradient);
  GNOMON_ASSERT(master.size() == gradient.size() && weight.size() == gradient.size());
  if (count == 0) return;
  const Grid grid{.blocks_x = blocks_for(count, int64_t{kThreads} * kPerLane), .threads = kThreads};
  const auto& [m, v] = moments;
  GNOMON_ASSERT(moment_elements(m) == count);
  with_rule(step, [&]<class Rule>(const Rule& rule) {
    const auto start = [&](auto first, auto second) {
      launch(optimizer_row(step.optimizer).name.data(),
             update_kernel<Rule, decltype(first), decltype(second)>, grid, stream, step, rule,
             count, gradient.data(), first, second, master.data(), weight.data(), &sums->read,
             &sums->written);
    };
    if constexpr (Rule::kHasSecondMoment) {
      GNOMON_ASSERT(moment_elements(v) == count);
      std::visit([&](const auto& one, const auto& two) { start(stored(one), stored(two)); }, m, v);
    } else {
      std::visit([&](const auto& one) { start(stored(one), NoMoments{}); }, m);
    }
  });
}

void sum_of_squares(const float* x, int64_t count, double* sum, double* scratch, Stream stream) {
  const int64_t wanted = blocks_for(count, int64_t{kThreads} * kPerLane * 8);
  const int64_t blocks = wanted < 1 ? 1 : wanted < kSquaresScratch ? wanted : kSquaresScratch;
  launch("squares", squares_kernel, {.blocks_x = blocks, .threads = kThreads}, stream, x, count,
         scratch);
  launch("add_squares", add_doubles_kernel, {.threads = 1024}, stream, scratch, blocks, sum);
}

}  // namespace gnomon::cuda
