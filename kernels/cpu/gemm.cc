#include "kernels/cpu/gemm.h"

#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>

#include "base/errors.h"
#include "kernels/cpu/gemm_avx512.h"
#include "kernels/cpu/ops.h"

namespace gnomon::cpu {
namespace {

using dnnl::memory;
using DataType = memory::data_type;

constexpr int64_t kAlignment = 64;
// From here on scratch memory asks for huge pages: products walk over all of it again and again.
constexpr int64_t kHugePage = int64_t{2} << 20;
// With BF16 output oneDNN keeps the FP32 sums in scratch. Rows are taken in pieces, so that these
// stay in cache.
constexpr int64_t kSumsBytesMax = int64_t{4} << 20;

memory::desc matrix(int64_t rows, int64_t columns, DataType type, bool transposed, int64_t stride) {
  return {{rows, columns}, type, transposed ? memory::dims{1, stride} : memory::dims{stride, 1}};
}

memory wrap(const memory::desc& description, const dnnl::engine& engine) {
  return {description, engine, DNNL_MEMORY_NONE};
}

int64_t padded(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

int64_t fp32_bytes(int64_t elements) {
  return padded(elements * static_cast<int64_t>(sizeof(float)));
}

// The same matrix in another type, rounded where that is narrower; rows are `stride` apart.
template <class From, class To>
void convert(const From* x, int64_t rows, int64_t columns, int64_t stride_x, To* y,
             int64_t stride_y) {
#pragma omp parallel for schedule(static)
  for (int64_t row = 0; row < rows; ++row) {
    const From* __restrict from = x + row * stride_x;
    To* __restrict to = y + row * stride_y;
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) to[i] = from_float<To>(to_float(from[i]));
  }
}

}  // namespace

ThreadCountGuard::ThreadCountGuard(int threads) : before_(omp_get_max_threads()) {
  omp_set_num_threads(threads);
}

ThreadCountGuard::~ThreadCountGuard() { omp_set_num_threads(before_); }

Matmul::Matmul(const dnnl::engine& engine, const MatmulShape& shape) {
  try {
    prepare(engine, shape);
    scratch_bytes_ = library_scratch_bytes_;
  } catch (const dnnl::error& error) {
    if (error.status != dnnl_unimplemented || shape.fp32_operands) throw;
    MatmulShape wide = shape;
    wide.fp32_operands = wide.fp32_output = true;
    wide.lda = shape.transpose_a ? shape.m : shape.k;
    wide.ldb = shape.transpose_b ? shape.k : shape.n;
    if (!shape.fp32_output) wide.ldc = shape.n;
    prepare(engine, wide);
    scratch_bytes_ = library_scratch_bytes_ + fp32_bytes(shape.m * shape.k) +
                     fp32_bytes(shape.k * shape.n) +
                     (shape.fp32_output ? 0 : fp32_bytes(shape.m * shape.n));
    widened_ = shape;
  }
}

void Matmul::prepare(const dnnl::engine& engine, const MatmulShape& shape) {
  DataType operands = shape.fp32_operands ? DataType::f32 : DataType::bf16;
  memory::desc a = matrix(shape.m, shape.k, operands, shape.transpose_a, shape.lda);
  memory::desc b = matrix(shape.k, shape.n, operands, shape.transpose_b, shape.ldb);
  memory::desc c = matrix(shape.m, shape.n, shape.fp32_output ? DataType::f32 : DataType::bf16,
                          false, shape.ldc);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  constexpr int kEachColumn = 1 << 1;
  if (shape.scaled || shape.columns) {
    attributes.set_output_scales(shape.columns ? kEachColumn : 0, {DNNL_RUNTIME_F32_VAL});
  }
  if (shape.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attributes.set_post_ops(sum);
  }
  dnnl::matmul::primitive_desc description({a, b, c}, attributes, engine);
  primitive_ = dnnl::matmul(description);
  library_scratch_bytes_ = padded(static_cast<int64_t>(description.scratchpad_desc().get_size()));
  a_ = wrap(a, engine);
  b_ = wrap(b, engine);
  c_ = wrap(c, engine);
  scratch_ = wrap(description.scratchpad_desc(), engine);
  arguments_ = {{DNNL_ARG_SRC, a_},
                {DNNL_ARG_WEIGHTS, b_},
                {DNNL_ARG_DST, c_},
                {DNNL_ARG_SCRATCHPAD, scratch_}};
  if (shape.scaled || shape.columns) {
    int64_t count = shape.columns ? shape.n : 1;
    alpha_ = wrap({{count}, DataType::f32, memory::dims{1}}, engine);
    arguments_.emplace(DNNL_ARG_ATTR_OUTPUT_SCALES, alpha_);
  }
}

void Matmul::run(dnnl::stream& stream, const float* alpha, const void* a, const void* b, void* c,
                 std::byte* scratch) {
  if (alpha_) alpha_.set_data_handle(const_cast<float*>(alpha));
  if (widened_) return run_widened(stream, a, b, c, scratch);
  execute(stream, a, b, c, scratch);
}

void Matmul::run_widened(dnnl::stream& stream, const void* a, const void* b, void* c,
                         std::byte* scratch) {
  const MatmulShape& s = *widened_;
  std::byte* at = scratch + library_scratch_bytes_;
  const auto allocate = [&at](int64_t elements) {
    auto* taken = reinterpret_cast<float*>(at);
    at += fp32_bytes(elements);
    return taken;
  };
  const auto widen_operand = [&](const void* x, int64_t outer, int64_t inner, bool transposed,
                                 int64_t stride) {
    float* wide = allocate(outer * inner);
    const int64_t columns = transposed ? outer : inner;
    convert(static_cast<const bf16*>(x), transposed ? inner : outer, columns, stride, wide,
            columns);
    return wide;
  };
  const float* wide_a = widen_operand(a, s.m, s.k, s.transpose_a, s.lda);
  const float* wide_b = widen_operand(b, s.k, s.n, s.transpose_b, s.ldb);
  if (s.fp32_output) return execute(stream, wide_a, wide_b, c, scratch);
  float* sums = allocate(s.m * s.n);
  GNOMON_ASSERT(!s.accumulate);
  execute(stream, wide_a, wide_b, sums, scratch);
  stream.wait();
  convert(sums, s.m, s.n, s.n, static_cast<bf16*>(c), s.ldc);
}

void Matmul::execute(dnnl::stream& stream, const void* a, const void* b, void* c,
                     std::byte* scratch) {
  a_.set_data_handle(const_cast<void*>(a));
  b_.set_data_handle(const_cast<void*>(b));
  c_.set_data_handle(c);
  scratch_.set_data_handle(scratch);
  primitive_.execute(stream, arguments_);
}

void GrowingScratch::Free::operator()(std::byte* memory) const { std::free(memory); }

std::byte* GrowingScratch::at_least(int64_t bytes) {
  if (bytes > bytes_) {
    const int64_t alignment = bytes >= kHugePage ? kHugePage : kAlignment;
    const int64_t rounded = (bytes + alignment - 1) / alignment * alignment;
    memory_.reset();
    memory_.reset(static_cast<std::byte*>(
        std::aligned_alloc(static_cast<size_t>(alignment), static_cast<size_t>(rounded))));
    if (memory_ == nullptr) throw std::bad_alloc();
    if (alignment == kHugePage) madvise(memory_.get(), static_cast<size_t>(rounded), MADV_HUGEPAGE);
    bytes_ = rounded;
  }
  return memory_.get();
}

GemmCache::GemmCache(int threads)
    : threads_(threads),
      // Where there are matrix units (AMX) oneDNN uses them.
      own_gemms_(dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_bf16),
      engine_(dnnl::engine::kind::cpu, 0),
      stream_(engine_) {}

Matmul& GemmCache::prepared(const MatmulShape& shape) {
  std::unique_ptr<Matmul>& matmul = matmuls_[shape];
  if (matmul == nullptr) matmul = std::make_unique<Matmul>(engine_, shape);
  return *matmul;
}

template <class E, class Out>
void GemmCache::run(const GemmShape& shape, std::span<const float> alphas, const E* a, const E* b,
                    Out* c, bool accumulate) {
  constexpr bool kFp32Output = std::is_same_v<Out, float>;
  GNOMON_ASSERT(shape.m > 0 && shape.n > 0 && shape.k > 0);
  const bool columns = alphas.size() > 1;
  GNOMON_ASSERT(!columns || std::ssize(alphas) == shape.n);
  if constexpr (std::is_same_v<E, bf16>) {
    if (own_gemms_ && avx512_gemm_runs(shape)) {
      avx512_gemm(threads_, shape, alphas, a, b, c, accumulate,
                  scratch_.at_least(avx512_gemm_scratch_bytes(threads_, shape)));
      return;
    }
  }
  ThreadCountGuard guard(threads_);
  MatmulShape piece{.m = shape.m,
                    .n = shape.n,
                    .k = shape.k,
                    .transpose_a = shape.transpose_a,
                    .transpose_b = shape.transpose_b,
                    .lda = row_stride(shape.stride_a, shape.transpose_a ? shape.m : shape.k),
                    .ldb = row_stride(shape.stride_b, shape.transpose_b ? shape.k : shape.n),
                    .ldc = row_stride(shape.stride_c, shape.n),
                    .fp32_operands = std::is_same_v<E, float>,
                    .fp32_output = kFp32Output,
                    .accumulate = accumulate,
                    .scaled = !columns,
                    .columns = columns};
  if (!kFp32Output) {
    int64_t rows = kSumsBytesMax / (shape.n * static_cast<int64_t>(sizeof(float))) / 64 * 64;
    piece.m = std::min(shape.m, std::max<int64_t>(rows, 64));
  }
  int64_t row_step_a = shape.transpose_a ? 1 : piece.lda;
  for (int64_t row = 0; row < shape.m; row += piece.m) {
    piece.m = std::min(piece.m, shape.m - row);
    Matmul& matmul = prepared(piece);
    matmul.run(stream_, alphas.data(), a + row * row_step_a, b, c + row * piece.ldc,
               scratch_.at_least(matmul.scratch_bytes()));
  }
  stream_.wait();
}

template void GemmCache::run(const GemmShape&, std::span<const float>, const bf16*, const bf16*,
                             bf16*, bool);
template void GemmCache::run(const GemmShape&, std::span<const float>, const bf16*, const bf16*,
                             float*, bool);
template void GemmCache::run(const GemmShape&, std::span<const float>, const float*, const float*,
                             float*, bool);

}  // namespace gnomon::cpu
