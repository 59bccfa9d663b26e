// Causal attention on the device: softmax(q·kᵀ/√head_dim)·v, forward and backward (the meanings are
// those of BackendOf), and our own kernels for it, for head widths that are multiples of 8 up to
// 256: FP32 arithmetic on values in shared memory, no tensor cores, many times slower than cuDNN's
// (docs/gpu-status.md says what to expect), which attention_choice.h takes where they are there.
// Deterministic: every sum has one order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

namespace gnomon::cuda {

inline constexpr int kHeadDimMax = 256;

// Bytes of the logarithms of the softmax's sums, forward → backward, and of the backward's scratch:
// an FP32 for each query and head.
int64_t attention_saved_bytes(const AttentionShape& shape);
int64_t attention_scratch_bytes(const AttentionShape& shape);

// Who computes it. Strides are given, not 0; what `saved` and `scratch` hold is as above.
class Attention {
 public:
  virtual ~Attention() = default;
  // For the fingerprint: the bits differ from one to another.
  virtual std::string name() const = 0;
  // Makes what calls with this shape need, so that they take no memory and can be captured in a
  // graph: all shapes before the first capture, since a later one may move the workspace. Calls
  // without it make it at the first one.
  virtual void prepare(const AttentionShape& shape) = 0;
  virtual void forward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                       bf16* o, std::byte* saved, Stream stream) = 0;
  virtual void backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                        const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                        const std::byte* saved, std::byte* scratch, Stream stream) = 0;
};

// Our own kernels.
void attention(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
               std::byte* saved, Stream stream);
void attention_backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                        const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                        const std::byte* saved, std::byte* scratch, Stream stream);

class OwnAttention final : public Attention {
 public:
  std::string name() const override { return "own attention"; }
  void prepare(const AttentionShape& /*shape*/) override {}
  void forward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
               std::byte* saved, Stream stream) override {
    attention(shape, q, k, v, o, saved, stream);
  }
  void backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                const std::byte* saved, std::byte* scratch, Stream stream) override {
    attention_backward(shape, q, k, v, o, d_o, dq, dk, dv, saved, scratch, stream);
  }
};

}  // namespace gnomon::cuda
