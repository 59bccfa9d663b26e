// The CPU backend: the operations of ops.h behind the interface, with the products, tables and
// scratch memory that they keep between calls. One thread calls it at a time.
#include "kernels/backend.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <type_traits>

#include "base/errors.h"
#include "base/host.h"
#include "fmt/format.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/operands.h"
#include "kernels/cpu/ops.h"
#include "kernels/statistics_source.h"

namespace gnomon {
namespace {

std::string_view isa_name(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    default:
      return "isa below avx2";
  }
}

template <class E>
class CpuBackend final : public BackendOf<E> {
 public:
  explicit CpuBackend(int threads)
      : threads_(threads), statistics_(threads), gemms_(threads), operands_(threads, gemms_) {}

  std::string name() const override { return "cpu"; }
  std::string device() const override {
    return fmt::format("{} ({})", processor_name(), isa_name(dnnl::get_effective_cpu_isa()));
  }
  std::string libraries() const override {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{}, compiler {}", version->major, version->minor,
                       version->patch, __VERSION__);
  }
  int threads() const override { return threads_; }
  Memory& memory() override { return host_memory(); }
  StatisticsSource& statistics() override { return statistics_; }

  void gemm(const GemmShape& shape, float alpha, const E* a, const E* b, E* c) override {
    gemms_.run(shape, std::span(&alpha, 1), a, b, c, false);
  }
  void gemm(const GemmShape& shape, float alpha, const E* a, const E* b, float* c,
            bool accumulate) override {
    gemms_.run(shape, std::span(&alpha, 1), a, b, c, accumulate);
  }

  void amax(std::span<const bf16> x, float* amax) override { *amax = cpu::amax(threads_, x); }
  uint64_t hash_terms(std::span<const HashPiece> pieces) override {
    uint64_t sum = 0;
    for (const HashPiece& it : pieces) sum += cpu::hash_terms(threads_, it.content, it.first);
    return sum;
  }
  void raise(const float* amax, float* most) override {
    if (std::isfinite(*amax) && *amax > 0) *most = std::max(*most, *amax);
  }

  bool keeps_scales(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b,
                    bool /*fp32_result*/) override {
    return cpu::keeps_scales(accumulation, a, b);
  }
  void quantize(GemmOperand<E>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                unsigned /*wanted*/, CastCounts* counts) override {
    if constexpr (kRounds) operands_.quantize(operand, rows, columns, rounding, counts);
    GNOMON_ASSERT(kRounds);
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<E>& a,
            std::span<const GemmOperand<E>* const> b, E* c) override {
    if constexpr (kRounds) operands_.gemm(shape, accumulation, a, b, c, false);
    GNOMON_ASSERT(kRounds);
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<E>& a,
            const GemmOperand<E>& b, float* c, bool accumulate) override {
    if constexpr (kRounds) {
      const GemmOperand<bf16>* right = &b;
      operands_.gemm(shape, accumulation, a, std::span(&right, 1), c, accumulate);
    }
    GNOMON_ASSERT(kRounds);
  }

  void round_sum(std::span<const float> x, std::span<E> y) override {
    cpu::round_sum<E>(threads_, x, y);
  }

  void add_rms_norm(std::span<const E> residual, std::span<const E> x, std::span<const E> w,
                    float eps, std::span<E> sum, std::span<E> y, std::span<float> rstd,
                    float* amax) override {
    cpu::add_rms_norm<E>(threads_, residual, x, w, eps, sum, y, rstd);
    find_amax(y, amax);
  }
  void rms_norm_backward(std::span<const E> residual, std::span<const E> w,
                         std::span<const float> rstd, std::span<const E> dy,
                         std::span<E> d_residual, std::span<float> dw, float* amax) override {
    cpu::rms_norm_backward<E>(threads_, residual, w, rstd, dy, d_residual, dw,
                              per_thread(std::ssize(w)));
    find_amax(d_residual, amax);
  }
  void norm_heads(E* x, int64_t n, int heads, std::span<const E> w, float eps, int64_t stride,
                  std::span<E> before, std::span<float> rstd) override {
    cpu::norm_heads<E>(threads_, x, n, heads, w, eps, stride, before, rstd);
  }
  void norm_heads_backward(std::span<const E> before, std::span<const E> w,
                           std::span<const float> rstd, E* dy, int64_t n, int heads, int64_t stride,
                           std::span<float> dw) override {
    cpu::norm_heads_backward<E>(threads_, before, w, rstd, dy, n, heads, stride, dw,
                                per_thread(std::ssize(w)));
  }
  void add_bias(E* y, int64_t n, std::span<const E> bias, int64_t stride) override {
    cpu::add_bias<E>(threads_, y, n, bias, stride);
  }
  void bias_backward(const E* dy, int64_t n, std::span<float> db, int64_t stride) override {
    cpu::bias_backward<E>(threads_, dy, n, db, stride, per_thread(std::ssize(db)));
  }
  void rope(E* x, int64_t n, int64_t tokens_per_sequence, int heads, int head_dim,
            const Rotary& rotary, bool inverse, int64_t stride) override {
    auto [entry, inserted] = rope_tables_.try_emplace({tokens_per_sequence, head_dim, rotary},
                                                      tokens_per_sequence, head_dim, rotary);
    const RotaryTable& table = entry->second;
    cpu::rope<E>(threads_, x, n, tokens_per_sequence, heads, head_dim, table.cosines, table.sines,
                 inverse, stride);
  }
  void swiglu(const E* gate, const E* up, int64_t n, int64_t width, int64_t stride, E* y,
              float* amax, const CopyAlong<E>* copy) override {
    cpu::swiglu<E>(threads_, gate, up, n, width, stride, y);
    find_amax({y, static_cast<size_t>(n * width)}, amax);
    if (copy == nullptr) return;
    quantize(*copy->operand, n, width, copy->rounding, copy->wanted, copy->counts);
  }
  void swiglu_backward(const E* gate, const E* up, const E* dy, int64_t n, int64_t width,
                       int64_t stride, E* dgate, E* dup, int64_t stride_d, float* amax_gate,
                       float* amax_up) override {
    cpu::swiglu_backward<E>(threads_, gate, up, dy, n, width, stride, dgate, dup, stride_d);
    GNOMON_ASSERT((amax_gate == nullptr && amax_up == nullptr) ||
                  cpu::row_stride(stride_d, width) == width);
    find_amax({dgate, static_cast<size_t>(n * width)}, amax_gate);
    find_amax({dup, static_cast<size_t>(n * width)}, amax_up);
  }

  int64_t attention_saved_bytes(const AttentionShape& shape) const override {
    return cpu::Attention<E>::saved_bytes(shape);
  }
  int64_t attention_scratch_bytes(const AttentionShape& shape) const override {
    return cpu::Attention<E>::scratch_bytes(shape, threads_);
  }
  void attention(const AttentionShape& shape, const E* q, const E* k, const E* v, E* o,
                 std::byte* saved, std::byte* scratch) override {
    attention_of(shape).forward(q, k, v, o, saved, scratch);
  }
  void attention_backward(const AttentionShape& shape, const E* q, const E* k, const E* v,
                          const E* o, const E* d_o, E* dq, E* dk, E* dv, const std::byte* saved,
                          std::byte* scratch) override {
    attention_of(shape).backward(q, k, v, o, d_o, dq, dk, dv, saved, scratch);
  }

  void embed(std::span<const int32_t> tokens, std::span<const E> table, int64_t width,
             std::span<E> y) override {
    cpu::embed<E>(threads_, tokens, table, width, y);
  }
  void embed_backward(std::span<const int32_t> tokens, std::span<const E> dy, int64_t width,
                      std::span<float> dtable) override {
    cpu::embed_backward<E>(threads_, tokens, dy, width, dtable);
  }
  void cross_entropy(std::span<E> logits, std::span<const int32_t> targets, int64_t vocabulary,
                     float scale, bool with_gradient, std::span<float> losses,
                     float* amax) override {
    cpu::cross_entropy<E>(threads_, logits, targets, vocabulary, scale, with_gradient, losses,
                          per_thread(vocabulary));
    find_amax(logits, amax);
  }

  double sum_of_squares(std::span<const float> x) override {
    return cpu::sum_of_squares(threads_, x);
  }
  StateSums update(const UpdateStep& step, std::span<const float> gradient,
                   const MomentSpans& moments, std::span<float> master,
                   WeightSpan weight) override {
    return std::visit(
        [&](auto w) { return cpu::update(threads_, step, gradient, moments, master, w); }, weight);
  }
  void zero(std::span<std::byte> x) override { cpu::zero(threads_, x); }

 private:
  static constexpr bool kRounds = std::is_same_v<E, bf16>;  // a model of FP32 rounds nothing

  void find_amax(std::span<const E> x, float* at) const {
    GNOMON_ASSERT(at == nullptr || kRounds);
    if constexpr (kRounds) {
      if (at != nullptr) *at = cpu::amax(threads_, x);
    }
  }

  // Scratch of `width` floats for each thread.
  std::span<float> per_thread(int64_t width) {
    int64_t count = width * threads_;
    std::byte* memory = per_thread_.at_least(count * static_cast<int64_t>(sizeof(float)));
    return {reinterpret_cast<float*>(memory), static_cast<size_t>(count)};
  }

  cpu::Attention<E>& attention_of(const AttentionShape& shape) {
    std::unique_ptr<cpu::Attention<E>>& attention = attentions_[shape];
    if (attention == nullptr) {
      attention = std::make_unique<cpu::Attention<E>>(gemms_.engine(), shape, threads_);
    }
    return *attention;
  }

  int threads_;
  HostStatistics statistics_;
  cpu::GemmCache gemms_;
  cpu::OperandKernels operands_;
  cpu::GrowingScratch per_thread_;
  std::map<std::tuple<int64_t, int, Rotary>, RotaryTable> rope_tables_;
  std::map<AttentionShape, std::unique_ptr<cpu::Attention<E>>> attentions_;
};

}  // namespace

template <class E>
std::unique_ptr<BackendOf<E>> make_cpu_backend(int threads) {
  if (threads < 1)
    throw Error(fmt::format("{} CPU threads asked for; accepted are 1 and more", threads));
  return std::make_unique<CpuBackend<E>>(threads);
}

template std::unique_ptr<BackendOf<bf16>> make_cpu_backend(int);
template std::unique_ptr<BackendOf<float>> make_cpu_backend(int);

}  // namespace gnomon
