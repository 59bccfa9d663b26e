#include "kernels/cuda/backend.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "kernels/cuda/device_statistics.h"
#include "kernels/cuda/device_wires.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/hash.h"
#include "kernels/cuda/loss.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/quantize.h"

namespace gnomon::cuda {
namespace {

int64_t stride_or(int64_t stride, int64_t width) { return stride == 0 ? width : stride; }

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(std::unique_ptr<Machine> machine)
      : machine_(std::move(machine)),
        operands_(*machine_),
        statistics_(memory(), stream()),
        scratch_(memory()),
        places_(memory()),
        doubles_(memory()) {
    doubles_.at_least(1 + kSquaresScratch);
  }

  std::string name() const override { return "cuda"; }
  std::string device() const override { return machine_->device(); }
  std::string libraries() const override { return machine_->libraries(); }
  int threads() const override { return 0; }
  int64_t width_multiple() const override { return 16; }
  Limits limits() const override {
    return {.width_most = kNormWidthMax,
            .head_dim_most = kHeadWidthMax,
            .head_dim_multiple = 8,
            .promotes_at_will = false};
  }
  std::string lacks_fp8() const override { return machine_->lacks_fp8(); }
  Memory& memory() override { return machine_->memory(); }
  std::unique_ptr<Wires> wires(Collectives& ranks, WireLayout layout) override {
    if (ranks.size() == 1) return Backend::wires(ranks, std::move(layout));
    if (exchange_ == nullptr) exchange_ = machine_->connect(ranks);
    return make_device_wires(*exchange_, memory(), stream(), std::move(layout));
  }
  std::unique_ptr<SideGathers> side_gathers(Collectives& ranks,
                                            std::vector<WireLayout> layouts) override {
    if (ranks.size() == 1) return Backend::side_gathers(ranks, std::move(layouts));
    return make_device_side_gathers(machine_->side_stream(ranks), memory(), std::move(layouts));
  }
  StatisticsSource& statistics() override { return statistics_; }
  void expect_products(std::vector<ExpectedProduct> products) override {
    operands_.expect(std::move(products));
  }

  bool repeat(uint64_t key, const std::function<void()>& work) override {
    if (!machine_->records()) {
      work();
      return true;
    }
    // Addresses that recordings have may be those of something else by now.
    if (std::exchange(given_back_, memory().given_back()) != memory().given_back()) {
      repeats_.clear();
    }
    const auto [entry, is_new] = repeats_.try_emplace(key);
    Repeat& repeat = entry->second;
    if (is_new || repeat.refused) {
      work();
      return true;
    }
    if (repeat.recording == nullptr) {
      repeat.recording = record(work);
      repeat.refused = repeat.recording == nullptr;
      if (repeat.refused) return false;
    }
    repeat.recording->replay();
    return true;
  }
  void forget_repeats() override { repeats_.clear(); }

  void amax(std::span<const bf16> x, float* amax) override {
    cuda::amax(x.data(), std::ssize(x), amax, stream());
  }
  void raise(const float* amax, float* most) override { cuda::raise(amax, most, stream()); }
  uint64_t hash_terms(std::span<const HashPiece> pieces) override {
    auto* sum = reinterpret_cast<uint64_t*>(doubles_.data());
    clear_memory(sum, sizeof(uint64_t), stream());
    for (const HashPiece& it : pieces) {
      cuda::hash_terms(it.content.data(), std::ssize(it.content), it.first, sum, stream());
    }
    return HostView<uint64_t>(memory(), std::span<const uint64_t>(sum, 1))[0];
  }
  void zero(std::span<std::byte> x) override { clear_memory(x.data(), std::ssize(x), stream()); }
  double sum_of_squares(std::span<const float> x) override {
    double* all = doubles_.data();
    cuda::sum_of_squares(x.data(), std::ssize(x), all, all + 1, stream());
    return HostView<double>(memory(), std::span<const double>(all, 1))[0];
  }
  StateSums update(const UpdateStep& step, std::span<const float> gradient,
                   const MomentSpans& moments, std::span<float> master,
                   WeightSpan weight) override {
    auto* sums = reinterpret_cast<StateSums*>(doubles_.data());
    clear_memory(sums, sizeof(StateSums), stream());
    cuda::update(step, gradient, moments, master, std::get<std::span<bf16>>(weight), sums,
                 stream());
    return HostView<StateSums>(memory(), std::span<const StateSums>(sums, 1))[0];
  }

  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, bf16* c) override {
    plain(shape, alpha, a, b, c, false, false);
  }
  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, float* c,
            bool accumulate) override {
    plain(shape, alpha, a, b, c, true, accumulate);
  }
  bool keeps_scales(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b,
                    bool fp32_result) override {
    const bool fast = accumulation.hopper && accumulation.promote_every == 0;
    return native(accumulation, a, b) && operands_.multiplies(a, b, fast, fp32_result);
  }
  void quantize(GemmOperand<bf16>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                unsigned wanted, CastCounts* counts) override {
    operands_.quantize(operand, rows, columns, rounding, wanted, counts);
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a,
            std::span<const GemmOperand<bf16>* const> b, bf16* c) override {
    // Each with a scale of its own: a product for each.
    GemmShape part = shape;
    part.stride_c = stride_or(shape.stride_c, shape.n);
    for (const GemmOperand<bf16>* right : b) {
      part.n = std::ssize(right->data) / shape.k;
      operands_.gemm(part, accumulation, a, *right, c, false);
      c += part.n;
    }
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<bf16>& a,
            const GemmOperand<bf16>& b, float* c, bool accumulate) override {
    operands_.gemm(shape, accumulation, a, b, c, accumulate);
  }
  void round_sum(std::span<const float> x, std::span<bf16> y) override {
    cuda::round_sum(x.data(), std::ssize(x), y.data(), stream());
  }

  void add_rms_norm(std::span<const bf16> residual, std::span<const bf16> x,
                    std::span<const bf16> w, float eps, std::span<bf16> sum, std::span<bf16> y,
                    std::span<float> rstd, float* amax) override {
    cuda::add_rms_norm(residual.data(), x.empty() ? nullptr : x.data(), w.data(), eps,
                       std::ssize(rstd), std::ssize(w), sum.data(), y.data(), rstd.data(), amax,
                       stream());
  }
  void rms_norm_backward(std::span<const bf16> residual, std::span<const bf16> w,
                         std::span<const float> rstd, std::span<const bf16> dy,
                         std::span<bf16> d_residual, std::span<float> dw, float* amax) override {
    const int64_t rows = std::ssize(rstd), width = std::ssize(w);
    float* scratch = scratch_.at_least(rms_norm_scratch(rows, width)).data();
    cuda::rms_norm_backward(residual.data(), w.data(), rstd.data(), dy.data(), rows, width,
                            d_residual.data(), dw.data(), scratch, amax, stream());
  }
  void norm_heads(bf16* x, int64_t n, int heads, std::span<const bf16> w, float eps, int64_t stride,
                  std::span<bf16> before, std::span<float> rstd) override {
    const int64_t size = std::ssize(w);
    cuda::norm_heads(x, n, heads, w.data(), size, eps, stride_or(stride, heads * size),
                     before.data(), rstd.data(), stream());
  }
  void norm_heads_backward(std::span<const bf16> before, std::span<const bf16> w,
                           std::span<const float> rstd, bf16* dy, int64_t n, int heads,
                           int64_t stride, std::span<float> dw) override {
    const int64_t size = std::ssize(w);
    float* scratch = scratch_.at_least(norm_heads_scratch(n * heads, size)).data();
    cuda::norm_heads_backward(before.data(), w.data(), rstd.data(), dy, n, heads, size,
                              stride_or(stride, heads * size), dw.data(), scratch, stream());
  }
  void add_bias(bf16* y, int64_t n, std::span<const bf16> bias, int64_t stride) override {
    cuda::add_bias(y, n, bias.data(), std::ssize(bias), stride_or(stride, std::ssize(bias)),
                   stream());
  }
  void bias_backward(const bf16* dy, int64_t n, std::span<float> db, int64_t stride) override {
    const int64_t width = std::ssize(db);
    float* scratch = scratch_.at_least(bias_scratch(n, width)).data();
    cuda::bias_backward(dy, n, db.data(), width, stride_or(stride, width), scratch, stream());
  }
  void rope(bf16* x, int64_t n, int64_t tokens, int heads, int head_dim, const Rotary& rotary,
            bool inverse, int64_t stride) override {
    const RopeTable& table = rope_table(tokens, head_dim, rotary);
    cuda::rope(x, n, tokens, heads, head_dim, table.cosines.data(), table.sines.data(), inverse,
               stride_or(stride, int64_t{heads} * head_dim), stream());
  }
  void swiglu(const bf16* gate, const bf16* up, int64_t n, int64_t width, int64_t stride, bf16* y,
              float* amax, const CopyAlong<bf16>* copy) override {
    const int64_t apart = stride_or(stride, width);
    if (copy != nullptr) {
      operands_.swiglu(*copy, {gate, up, apart}, n, width, y, amax);
    } else {
      cuda::swiglu(gate, up, n, width, apart, y, amax, stream());
    }
  }
  void swiglu_backward(const bf16* gate, const bf16* up, const bf16* dy, int64_t n, int64_t width,
                       int64_t stride, bf16* dgate, bf16* dup, int64_t stride_d, float* amax_gate,
                       float* amax_up) override {
    cuda::swiglu_backward(gate, up, dy, n, width, stride_or(stride, width), dgate, dup,
                          stride_or(stride_d, width), amax_gate, amax_up, stream());
  }

  int64_t attention_saved_bytes(const AttentionShape& shape) const override {
    return cuda::attention_saved_bytes(shape);
  }
  int64_t attention_scratch_bytes(const AttentionShape& shape) const override {
    return cuda::attention_scratch_bytes(shape);
  }
  void attention(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
                 std::byte* saved, std::byte* /*scratch*/) override {
    machine_->attention().forward(with_strides(shape), q, k, v, o, saved, stream());
  }
  void attention_backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                          const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                          const std::byte* saved, std::byte* scratch) override {
    machine_->attention().backward(with_strides(shape), q, k, v, o, d_o, dq, dk, dv, saved, scratch,
                                   stream());
  }

  void embed(std::span<const int32_t> tokens, std::span<const bf16> table, int64_t width,
             std::span<bf16> y) override {
    cuda::embed(tokens.data(), std::ssize(tokens), table.data(), width, y.data(), stream());
  }
  void embed_backward(std::span<const int32_t> tokens, std::span<const bf16> dy, int64_t width,
                      std::span<float> dtable) override {
    const int64_t count = std::ssize(tokens);
    int32_t* sorted = places_.at_least(2 * count).data();
    machine_->sort_places(tokens.data(), count, sorted, sorted + count);
    cuda::embed_backward(sorted, sorted + count, count, dy.data(), width, dtable.data(), stream());
  }
  void cross_entropy(std::span<bf16> logits, std::span<const int32_t> targets, int64_t vocabulary,
                     float scale, bool with_gradient, std::span<float> losses,
                     float* amax) override {
    cuda::cross_entropy(logits.data(), targets.data(), std::ssize(targets), vocabulary, scale,
                        with_gradient, losses.data(), amax, stream());
  }

 private:
  struct RopeTable {
    explicit RopeTable(Memory& memory) : cosines(memory), sines(memory) {}
    Buffer<float> cosines, sines;  // [tokens, head_dim/2]
  };

  struct Repeat {
    std::unique_ptr<Recording> recording;
    bool refused = false;
  };

  std::unique_ptr<Recording> record(const std::function<void()>& work) {
    machine_->begin_recording();
    try {
      work();
    } catch (const Error& error) {
      // It asked for what cannot be had meanwhile, memory, say; or it will fail again.
      fmt::print(stderr, "warning: a pass cannot be recorded and is run each time: {}\n",
                 error.what());
      machine_->end_recording();
      return nullptr;
    }
    return machine_->end_recording();
  }

  Stream stream() const { return machine_->stream(); }

  void plain(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, void* c,
             bool fp32_output, bool accumulate) {
    const Factor left{.data = a,
                      .stride = stride_or(shape.stride_a, shape.transpose_a ? shape.m : shape.k),
                      .transposed = shape.transpose_a};
    const Factor right{.data = b,
                       .stride = stride_or(shape.stride_b, shape.transpose_b ? shape.k : shape.n),
                       .transposed = shape.transpose_b};
    machine_->multiply({.m = shape.m,
                        .n = shape.n,
                        .k = shape.k,
                        .fp32_output = fp32_output,
                        .stride_c = stride_or(shape.stride_c, shape.n),
                        .alpha = alpha,
                        .accumulate = accumulate},
                       left, right, c);
  }

  static AttentionShape with_strides(AttentionShape shape) {
    const int64_t q = int64_t{shape.heads} * shape.head_dim;
    const int64_t kv = int64_t{shape.kv_heads} * shape.head_dim;
    shape.stride_q = stride_or(shape.stride_q, q);
    shape.stride_dq = stride_or(shape.stride_dq, q);
    shape.stride_kv = stride_or(shape.stride_kv, kv);
    shape.stride_dkv = stride_or(shape.stride_dkv, kv);
    return shape;
  }

  const RopeTable& rope_table(int64_t tokens, int head_dim, const Rotary& rotary) {
    const auto [entry, is_new] = rope_tables_.try_emplace({tokens, head_dim, rotary}, memory());
    RopeTable& table = entry->second;
    if (!is_new) return table;
    const RotaryTable made(tokens, head_dim, rotary);
    for (auto& [from, to] :
         {std::pair(&made.cosines, &table.cosines), std::pair(&made.sines, &table.sines)}) {
      write_from_host(memory(), std::span<const float>(*from), to->at_least(std::ssize(*from)));
    }
    return table;
  }

  std::unique_ptr<Machine> machine_;
  std::unique_ptr<DeviceExchange> exchange_;  // where there are other ranks
  OperandKernels operands_;
  DeviceStatistics statistics_;
  Buffer<float> scratch_;  // of one operation
  Buffer<int32_t> places_;
  Buffer<double> doubles_;
  std::map<std::tuple<int64_t, int, Rotary>, RopeTable> rope_tables_;
  std::map<uint64_t, Repeat> repeats_;
  uint64_t given_back_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_backend(std::unique_ptr<Machine> machine) {
  return std::make_unique<CudaBackend>(std::move(machine));
}

}  // namespace gnomon::cuda
