#include "kernels/cuda/cudnn_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/cudnn_plan.h"

namespace gnomon::cuda {
namespace {

// Before it, lengths that are no multiples of 128 went wrong in the backward pass.
constexpr size_t kVersionLeast = 91600;
constexpr int64_t kElementsAligned = 8;    // 16 bytes of BF16
constexpr int64_t kStatisticsAligned = 4;  // 16 bytes of FP32

class Handle {
 public:
  explicit Handle(Stream stream) {
    check(GNOMON_CUDNN(cudnnCreate)(&it_), "cudnnCreate");
    check(GNOMON_CUDNN(cudnnSetStream)(it_, stream), "cudnnSetStream");
  }
  ~Handle() { GNOMON_CUDNN(cudnnDestroy)(it_); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  cudnnHandle_t get() const { return it_; }

 private:
  cudnnHandle_t it_ = nullptr;
};

std::string in_words(const AttentionShape& s) {
  return fmt::format("{} sequences of {} tokens, {} heads of {} over {}", s.sequences, s.tokens,
                     s.heads, s.head_dim, s.kv_heads);
}

// What a shape needs. A part's shape is one of at most four.
struct Prepared {
  Prepared(const AttentionShape& shape, int64_t matrix_bytes_most, cudnnHandle_t handle)
      : forward(attention_forward_graph(shape, int64_t{shape.heads} * shape.head_dim),
                {.handle = handle, .properties = {}}),
        parts(attention_parts(shape, matrix_bytes_most)) {
    workspace_bytes = forward.workspace_bytes();
    for (const AttentionPart& part : parts) {
      if (attention_offset(kLse, part, shape) % kStatisticsAligned != 0) {
        throw NotSupported("runs of some heads or sequences need a multiple of 4 tokens");
      }
      const AttentionShape of_part = shape_of(part, shape);
      if (backward.contains(of_part)) continue;
      const auto graph = attention_backward_graph(of_part, int64_t{shape.heads} * shape.head_dim);
      const CudnnPlan& plan =
          backward.try_emplace(of_part, graph, PlanTarget{.handle = handle, .properties = {}})
              .first->second;
      workspace_bytes = std::max(workspace_bytes, plan.workspace_bytes());
    }
  }

  CudnnPlan forward;
  std::vector<AttentionPart> parts;
  std::map<AttentionShape, CudnnPlan> backward;
  int64_t workspace_bytes = 0;
};

class CudnnAttention final : public Attention {
 public:
  CudnnAttention(bool only, Memory& memory, Stream stream,
                 std::function<void(const std::string&)> warn, int64_t matrix_bytes_most)
      : only_(only),
        matrix_bytes_most_(matrix_bytes_most),
        stream_(stream),
        handle_(stream),
        workspace_(memory),
        warn_(std::move(warn)) {}

  std::string name() const override {
    return fmt::format("deterministic attention by cuDNN {}{}", cudnn_version(),
                       only_ ? "" : " where it takes the shape");
  }
  void prepare(const AttentionShape& shape) override { prepared(shape); }
  // Makes a plan for a shape that every device takes: throws what keeps the library from making
  // any, such as parts of it that are not installed.
  void try_out() const {
    constexpr int64_t kWidth = 64;
    const AttentionShape shape{1, 128, 1, 1, kWidth, kWidth, kWidth, kWidth, kWidth};
    const Prepared plans(shape, matrix_bytes_most_, handle_.get());
  }

  void forward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
               std::byte* saved, Stream stream) override {
    GNOMON_ASSERT(stream == stream_);
    const Prepared* plans = prepared(shape);
    if (plans == nullptr) return own_.forward(shape, q, k, v, o, saved, stream);
    plans->forward.run(handle_.get(), addresses({q, k, v, o, saved}), workspace_.data());
  }

  void backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                const std::byte* saved, std::byte* scratch, Stream stream) override {
    GNOMON_ASSERT(stream == stream_);
    const Prepared* plans = prepared(shape);
    if (plans == nullptr) {
      return own_.backward(shape, q, k, v, o, d_o, dq, dk, dv, saved, scratch, stream);
    }
    const auto whole = addresses({q, k, v, o, saved, d_o, dq, dk, dv, scratch});
    for (const AttentionPart& part : plans->parts) {
      std::vector<void*> at;
      for (int tensor = 0; tensor < kAttentionTensors; ++tensor) {
        const auto which = static_cast<AttentionTensor>(tensor);
        const int64_t size = which == kLse || which == kDelta ? sizeof(float) : sizeof(bf16);
        at.push_back(static_cast<std::byte*>(whole[static_cast<size_t>(tensor)]) +
                     attention_offset(which, part, shape) * size);
      }
      plans->backward.at(shape_of(part, shape)).run(handle_.get(), at, workspace_.data());
    }
  }

 private:
  // cuDNN does not look whether they are aligned, and gives nonsense when they are not.
  static std::vector<void*> addresses(std::initializer_list<const void*> all) {
    std::vector<void*> result;
    for (const void* one : all) {
      GNOMON_ASSERT(reinterpret_cast<uintptr_t>(one) % 16 == 0);
      result.push_back(const_cast<void*>(one));
    }
    return result;
  }

  // Nothing where our own attention takes the shape.
  const Prepared* prepared(const AttentionShape& shape) {
    const auto [entry, is_new] = known_.try_emplace(shape);
    if (is_new) {
      std::string refusal = attention_refusal(shape);
      try {
        if (refusal.empty()) entry->second.emplace(shape, matrix_bytes_most_, handle_.get());
      } catch (const NotSupported& error) {
        refusal = error.what();
      } catch (...) {
        known_.erase(entry);
        throw;
      }
      if (!refusal.empty()) refuse(shape, refusal);
    }
    if (!entry->second) {
      if (only_) refuse(shape, "as before");
      return nullptr;
    }
    workspace_.at_least(entry->second->workspace_bytes);
    return &*entry->second;
  }

  void refuse(const AttentionShape& shape, const std::string& why) const {
    const std::string text =
        fmt::format("cuDNN's attention does not take {}: {}", in_words(shape), why);
    if (only_) throw Error(text + ". GNOMON_ATTENTION=own takes our own");
    warn_(text + ". Our own is used, which is much slower");
  }

  bool only_;
  int64_t matrix_bytes_most_;
  Stream stream_;  // the handle's
  Handle handle_;
  Buffer<std::byte> workspace_;
  std::function<void(const std::string&)> warn_;
  OwnAttention own_;
  std::map<AttentionShape, std::optional<Prepared>> known_;
};

}  // namespace

std::string attention_refusal(const AttentionShape& s) {
  if (s.head_dim % kElementsAligned != 0 || s.head_dim > 256) {
    return "a head's width must be a multiple of 8 up to 256";
  }
  for (int64_t stride : {s.stride_q, s.stride_kv, s.stride_dq, s.stride_dkv}) {
    if (stride % kElementsAligned != 0) {
      return fmt::format("rows that are {} elements apart; a multiple of 8 is needed", stride);
    }
  }
  return "";
}

std::unique_ptr<Attention> make_cudnn_attention(bool only, Memory& memory, Stream stream,
                                                std::function<void(const std::string&)> warn,
                                                int64_t matrix_bytes_most) {
  if (GNOMON_CUDNN(cudnnGetVersion)() < kVersionLeast) {
    throw Error(fmt::format("cuDNN {} is too old: 9.16 or later is needed", cudnn_version()));
  }
  auto result =
      std::make_unique<CudnnAttention>(only, memory, stream, std::move(warn), matrix_bytes_most);
  result->try_out();
  return result;
}

}  // namespace gnomon::cuda
