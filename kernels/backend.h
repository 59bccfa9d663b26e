// The operations that the engine is built from: one interface, several backends. All tensors are
// row-major, and dense unless a stride is given: the distance between rows in elements, of which 0
// means dense. n is the number of tokens, d a width. Activations and working weights are of
// the element type E, BF16 or FP32; reductions, losses and gradients of parameters are FP32. Every
// operation is deterministic for a given thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kernels/comm/wires.h"
#include "kernels/memory.h"
#include "kernels/moments.h"
#include "kernels/operand.h"
#include "kernels/optimizers.h"
#include "kernels/rotary.h"
#include "kernels/scaled_product.h"
#include "kernels/shapes.h"
#include "kernels/side_gathers.h"
#include "numerics/formats.h"
#include "numerics/quantizer.h"

namespace gnomon {

class StatisticsSource;

// A piece of data that is hashed; its first word is word `first` of all.
struct HashPiece {
  std::span<const std::byte> content;  // 8-byte aligned
  uint64_t first = 0;
};

// A product of m × n results over k terms, in FP32 (a weight's gradient, added to or not) or BF16.
struct ExpectedProduct {
  int64_t m = 0, n = 0, k = 0;
  bool fp32_result = false;
};

// What is the same for every element type.
class BackendBase {
 public:
  virtual ~BackendBase() = default;

  virtual std::string name() const = 0;    // "cpu"
  virtual std::string device() const = 0;  // for the fingerprint
  virtual std::string libraries() const = 0;
  // Those that compute; 0 where no bit depends on their number.
  virtual int threads() const = 0;
  // Why the device cannot make products of FP8 values; empty where it can.
  virtual std::string lacks_fp8() const { return {}; }
  // What the widths of a model must be multiples of; and where a product is of FP8 values, what it
  // sums over and its columns.
  virtual int64_t width_multiple() const { return 1; }
  struct Limits {
    int64_t width_most = std::numeric_limits<int64_t>::max();
    int head_dim_most = std::numeric_limits<int>::max();
    int head_dim_multiple = 1;
    bool promotes_at_will = true;  // `hopper` sums of FP8 products; else never, or every 128 terms
  };
  virtual Limits limits() const { return {}; }
  // Where all tensors lie that its operations are given.
  virtual Memory& memory() = 0;
  // For its tensors, between ranks that all call it; waits for them. Of several they may be for
  // different layouts, and always for the same ranks, which must outlive them, and this too. Throws
  // Error.
  virtual std::unique_ptr<Wires> wires(Collectives& ranks, WireLayout layout) {
    return make_host_wires(ranks, std::move(layout), threads());
  }
  // The same for gathers beside the operations, of several layouts. While any is under way, nothing
  // else may be said among the ranks.
  virtual std::unique_ptr<SideGathers> side_gathers(Collectives& ranks,
                                                    std::vector<WireLayout> layouts) {
    return make_host_side_gathers(ranks, std::move(layouts));
  }
  // Reads tensors there for kernels/statistics.h.
  virtual StatisticsSource& statistics() = 0;
  // The products of rounded operands that a run will make: keeps_scales() is about these.
  virtual void expect_products(std::vector<ExpectedProduct> /*products*/) {}

  // Does `work`, which calls operations of this backend and reads nothing back. A device may record
  // it when it comes with the same key, not 0, for the second time, and from then on do what it
  // recorded in place of calling `work`: who has other operations, addresses or numbers to do gives
  // another key. False: it could not be recorded, though `work` was called, and nothing was done;
  // the key is then called every time.
  virtual bool repeat(uint64_t key, const std::function<void()>& work);
  virtual void forget_repeats() {}

  // ---- number formats ----
  // *amax = max |x|; NaN and Inf propagate (as +Inf).
  virtual void amax(std::span<const bf16> x, float* amax) = 0;
  // *most = max(*most, *amax), unless *amax is 0 or not finite.
  virtual void raise(const float* amax, float* most) = 0;

  // The sum of PlacedHash's terms of the pieces (base/hash.h), and the hash of x as a whole.
  virtual uint64_t hash_terms(std::span<const HashPiece> pieces) = 0;
  uint64_t hash(std::span<const std::byte> x) {
    const HashPiece all{x};
    return PlacedHash::of(hash_terms(std::span(&all, 1)), x.size());
  }

  // ---- optimizer ----
  virtual double sum_of_squares(std::span<const float> x) = 0;  // deterministic order
  // Updates moments, master and the working copy, which is the master rounded, by the rule of
  // step.optimizer. Weight decay is decoupled: the master is multiplied by 1 − rate·decay.
  virtual StateSums update(const UpdateStep& step, std::span<const float> gradient,
                           const MomentSpans& moments, std::span<float> master,
                           WeightSpan weight) = 0;
  virtual void zero(std::span<std::byte> x) = 0;
  template <class T>
  void zero(std::span<T> x) {
    zero(std::as_writable_bytes(x));
  }
};

inline bool BackendBase::repeat(uint64_t /*key*/, const std::function<void()>& work) {
  work();
  return true;
}

template <class E>
class BackendOf : public BackendBase {
 public:
  // ---- linear algebra ----
  virtual void gemm(const GemmShape& shape, float alpha, const E* a, const E* b, E* c) = 0;
  virtual void gemm(const GemmShape& shape, float alpha, const E* a, const E* b, float* c,
                    bool accumulate) = 0;

  // ---- products of rounded operands ----
  // True when the copies for such a product keep the scales of their tiles: it is then made with
  // them, term by term or as Hopper adds. Otherwise a copy holds the values that it stands for, but
  // for the scale of a whole tensor. `a` and `b` are how its operands are rounded.
  virtual bool keeps_scales(const Accumulation& accumulation, const Quantizer& a,
                            const Quantizer& b, bool fp32_result) = 0;
  // Makes the copy of operand.data[rows, columns], and its scale where the whole tensor has one.
  // `wanted` is made of Orientation; more of them may be made. The amax is known where the scale
  // follows from it. Tiles have one row, or up to 256 columns, a power of two. Adds to `counts`, in
  // the backend's memory, where it is given, what the cast did. Another orientation of a copy that
  // is there is not counted again.
  virtual void quantize(GemmOperand<E>& operand, int64_t rows, int64_t columns,
                        const Rounding& rounding, unsigned wanted,
                        CastCounts* counts = nullptr) = 0;
  // C = op(A)·op(B) of the values that the copies stand for (+ C when `accumulate`). B may be
  // several operands of one room, its rows (with transpose_b) those of one after those of another;
  // they keep no scales of tiles then.
  virtual void gemm(const GemmShape& shape, const Accumulation& accumulation,
                    const GemmOperand<E>& a, std::span<const GemmOperand<E>* const> b, E* c) = 0;
  virtual void gemm(const GemmShape& shape, const Accumulation& accumulation,
                    const GemmOperand<E>& a, const GemmOperand<E>& b, float* c,
                    bool accumulate) = 0;

  // y = x rounded to E: the end of a sum that several accumulating GEMMs made in FP32.
  virtual void round_sum(std::span<const float> x, std::span<E> y) = 0;

  // ---- layers; backward adds nothing unless said, parameter gradients are accumulated ----
  // Where an `amax` is given, *amax = max |·| of the BF16 values made, as amax() finds it.
  // sum = residual + x (x may be empty), y = sum·rstd·w; rstd[n] is kept for the backward pass. sum
  // may be residual.
  virtual void add_rms_norm(std::span<const E> residual, std::span<const E> x, std::span<const E> w,
                            float eps, std::span<E> sum, std::span<E> y, std::span<float> rstd,
                            float* amax = nullptr) = 0;
  // d_residual += gradient through the norm; dw += .... `residual` is the value the forward pass
  // normalised.
  virtual void rms_norm_backward(std::span<const E> residual, std::span<const E> w,
                                 std::span<const float> rstd, std::span<const E> dy,
                                 std::span<E> d_residual, std::span<float> dw,
                                 float* amax = nullptr) = 0;
  // The norm of each head on its own, in place: x[n, heads, d] has rows `stride` apart, `before`,
  // of the same shape and dense, becomes what x was, then x = x·rstd·w with d elements of w;
  // rstd[n·heads] is kept for the backward pass.
  virtual void norm_heads(E* x, int64_t n, int heads, std::span<const E> w, float eps,
                          int64_t stride, std::span<E> before, std::span<float> rstd) = 0;
  // dy becomes the gradient of `before`; dw += ....
  virtual void norm_heads_backward(std::span<const E> before, std::span<const E> w,
                                   std::span<const float> rstd, E* dy, int64_t n, int heads,
                                   int64_t stride, std::span<float> dw) = 0;
  // y[n,d] += bias[d]; and db[d] += Σ_n dy.
  virtual void add_bias(E* y, int64_t n, std::span<const E> bias, int64_t stride) = 0;
  virtual void bias_backward(const E* dy, int64_t n, std::span<float> db, int64_t stride) = 0;
  // Rotates halves of each head in place (the Hugging Face convention); position = token index in
  // its sequence. x is [n, heads·head_dim]; `inverse` is the backward pass.
  virtual void rope(E* x, int64_t n, int64_t tokens_per_sequence, int heads, int head_dim,
                    const Rotary& rotary, bool inverse, int64_t stride) = 0;
  // y[n,d] = silu(gate)·up; y is dense, gate and up share a stride. A `copy` of y is made along
  // with it, as quantize() makes it.
  virtual void swiglu(const E* gate, const E* up, int64_t n, int64_t width, int64_t stride, E* y,
                      float* amax = nullptr, const CopyAlong<E>* copy = nullptr) = 0;
  // dgate and dup lie like gate and up, or are dense, as `stride_d` says; they may be gate and up.
  virtual void swiglu_backward(const E* gate, const E* up, const E* dy, int64_t n, int64_t width,
                               int64_t stride, E* dgate, E* dup, int64_t stride_d,
                               float* amax_gate = nullptr, float* amax_up = nullptr) = 0;

  // ---- attention: causal, softmax(q·kᵀ/√head_dim)·v; q,o: [B·T, H·hd], k,v: [B·T, KV·hd] ----
  // Non-finite values of a later token may reach earlier ones (0·NaN), as they do in any masked
  // product. `saved` and `scratch` are 64-byte aligned.
  virtual int64_t attention_saved_bytes(
      const AttentionShape& shape) const = 0;  // forward → backward
  virtual int64_t attention_scratch_bytes(const AttentionShape& shape) const = 0;
  virtual void attention(const AttentionShape& shape, const E* q, const E* k, const E* v, E* o,
                         std::byte* saved, std::byte* scratch) = 0;
  virtual void attention_backward(const AttentionShape& shape, const E* q, const E* k, const E* v,
                                  const E* o, const E* d_o, E* dq, E* dk, E* dv,
                                  const std::byte* saved, std::byte* scratch) = 0;

  // ---- ends ----
  virtual void embed(std::span<const int32_t> tokens, std::span<const E> table, int64_t width,
                     std::span<E> y) = 0;
  // dtable[token] += dy, in an order that does not depend on timing.
  virtual void embed_backward(std::span<const int32_t> tokens, std::span<const E> dy, int64_t width,
                              std::span<float> dtable) = 0;
  // losses[n] in nats; when with_gradient, logits become (softmax − onehot)·scale in place. A
  // target of −1 is ignored: loss 0, gradient 0. Any other target is a token of the vocabulary. An
  // `amax` is that of the gradient.
  virtual void cross_entropy(std::span<E> logits, std::span<const int32_t> targets,
                             int64_t vocabulary, float scale, bool with_gradient,
                             std::span<float> losses, float* amax = nullptr) = 0;
};

using Backend = BackendOf<bf16>;

// On oneDNN's GEMMs: BF16 with bit-accurate FP8 emulation, or FP32. Throws Error when threads < 1.
// Buffers that it needs for a shape are taken at the first call with that shape and kept.
template <class E = bf16>
std::unique_ptr<BackendOf<E>> make_cpu_backend(int threads);

// Makes the backend of an engine, by its element type and the number of threads on the host.
struct BackendMakers {
  std::function<std::unique_ptr<Backend>(int)> bf16 = make_cpu_backend<gnomon::bf16>;
  std::function<std::unique_ptr<BackendOf<float>>(int)> fp32 = make_cpu_backend<float>;
};

}  // namespace gnomon
