// A backend that passes everything on to the CPU's. Every operation goes between enter() and
// leave(); those that derived classes change are theirs to override.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "kernels/backend.h"
#include "kernels/statistics.h"
#include "kernels/statistics_tally.h"

namespace gnomon::test {

template <class E>
class ForwardingBackend : public BackendOf<E> {
 public:
  explicit ForwardingBackend(int threads) : backend_(make_cpu_backend<E>(threads)) {}

  std::string name() const override { return backend_->name(); }
  std::string device() const override { return backend_->device(); }
  std::string libraries() const override { return backend_->libraries(); }
  int threads() const override { return backend_->threads(); }
  Memory& memory() override { return backend_->memory(); }
  StatisticsSource& statistics() override { return statistics_; }

  void amax(std::span<const bf16> x, float* amax) override {
    around({x.data(), amax}, [&] { backend_->amax(x, amax); });
  }
  bool repeat(uint64_t key, const std::function<void()>& work) override {
    return backend_->repeat(key, work);
  }
  uint64_t hash_terms(std::span<const HashPiece> pieces) override {
    uint64_t sum = 0;
    for (const HashPiece& it : pieces) {
      around({it.content.data()}, [&] { sum += backend_->hash_terms(std::span(&it, 1)); });
    }
    return sum;
  }
  void raise(const float* amax, float* most) override {
    around({amax, most}, [&] { backend_->raise(amax, most); });
  }
  double sum_of_squares(std::span<const float> x) override {
    double sum = 0;
    around({x.data()}, [&] { sum = backend_->sum_of_squares(x); });
    return sum;
  }
  StateSums update(const UpdateStep& step, std::span<const float> gradient,
                   const MomentSpans& moments, std::span<float> master,
                   WeightSpan weight) override {
    StateSums sums;
    around({gradient.data(), master.data()},
           [&] { sums = backend_->update(step, gradient, moments, master, weight); });
    return sums;
  }
  void zero(std::span<std::byte> x) override {
    around({x.data()}, [&] { backend_->zero(x); });
  }

  void gemm(const GemmShape& shape, float alpha, const E* a, const E* b, E* c) override {
    around({a, b, c}, [&] { backend_->gemm(shape, alpha, a, b, c); });
  }
  void gemm(const GemmShape& shape, float alpha, const E* a, const E* b, float* c,
            bool accumulate) override {
    around({a, b, c}, [&] { backend_->gemm(shape, alpha, a, b, c, accumulate); });
  }
  bool keeps_scales(const Accumulation& accumulation, const Quantizer& a, const Quantizer& b,
                    bool fp32_result) override {
    return backend_->keeps_scales(accumulation, a, b, fp32_result);
  }
  void quantize(GemmOperand<E>& operand, int64_t rows, int64_t columns, const Rounding& rounding,
                unsigned wanted, CastCounts* counts) override {
    around({operand.data.data(), operand.room.begin, operand.scalars, operand.tile_scales.data()},
           [&] { backend_->quantize(operand, rows, columns, rounding, wanted, counts); });
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<E>& a,
            std::span<const GemmOperand<E>* const> b, E* c) override {
    around({a.data.data(), a.room.begin, a.scalars, a.tile_scales.data(), c},
           [&] { backend_->gemm(shape, accumulation, a, b, c); });
  }
  void gemm(const GemmShape& shape, const Accumulation& accumulation, const GemmOperand<E>& a,
            const GemmOperand<E>& b, float* c, bool accumulate) override {
    around({a.data.data(), a.room.begin, a.scalars, a.tile_scales.data(), b.data.data(),
            b.room.begin, b.scalars, b.tile_scales.data(), c},
           [&] { backend_->gemm(shape, accumulation, a, b, c, accumulate); });
  }
  void round_sum(std::span<const float> x, std::span<E> y) override {
    around({x.data(), y.data()}, [&] { backend_->round_sum(x, y); });
  }

  void add_rms_norm(std::span<const E> residual, std::span<const E> x, std::span<const E> w,
                    float eps, std::span<E> sum, std::span<E> y, std::span<float> rstd,
                    float* amax) override {
    around({residual.data(), x.data(), w.data(), sum.data(), y.data(), rstd.data(), amax},
           [&] { backend_->add_rms_norm(residual, x, w, eps, sum, y, rstd, amax); });
  }
  void rms_norm_backward(std::span<const E> residual, std::span<const E> w,
                         std::span<const float> rstd, std::span<const E> dy,
                         std::span<E> d_residual, std::span<float> dw, float* amax) override {
    around({residual.data(), w.data(), rstd.data(), dy.data(), d_residual.data(), dw.data(), amax},
           [&] { backend_->rms_norm_backward(residual, w, rstd, dy, d_residual, dw, amax); });
  }
  void norm_heads(E* x, int64_t n, int heads, std::span<const E> w, float eps, int64_t stride,
                  std::span<E> before, std::span<float> rstd) override {
    around({x, w.data(), before.data(), rstd.data()},
           [&] { backend_->norm_heads(x, n, heads, w, eps, stride, before, rstd); });
  }
  void norm_heads_backward(std::span<const E> before, std::span<const E> w,
                           std::span<const float> rstd, E* dy, int64_t n, int heads, int64_t stride,
                           std::span<float> dw) override {
    around({before.data(), w.data(), rstd.data(), dy, dw.data()},
           [&] { backend_->norm_heads_backward(before, w, rstd, dy, n, heads, stride, dw); });
  }
  void add_bias(E* y, int64_t n, std::span<const E> bias, int64_t stride) override {
    around({y, bias.data()}, [&] { backend_->add_bias(y, n, bias, stride); });
  }
  void bias_backward(const E* dy, int64_t n, std::span<float> db, int64_t stride) override {
    around({dy, db.data()}, [&] { backend_->bias_backward(dy, n, db, stride); });
  }
  void rope(E* x, int64_t n, int64_t tokens, int heads, int head_dim, const Rotary& rotary,
            bool inverse, int64_t stride) override {
    around({x}, [&] { backend_->rope(x, n, tokens, heads, head_dim, rotary, inverse, stride); });
  }
  void swiglu(const E* gate, const E* up, int64_t n, int64_t width, int64_t stride, E* y,
              float* amax, const CopyAlong<E>* copy) override {
    around({gate, up, y, amax}, [&] { backend_->swiglu(gate, up, n, width, stride, y, amax); });
    // By what stands around quantize().
    if (copy == nullptr) return;
    this->quantize(*copy->operand, n, width, copy->rounding, copy->wanted, copy->counts);
  }
  void swiglu_backward(const E* gate, const E* up, const E* dy, int64_t n, int64_t width,
                       int64_t stride, E* dgate, E* dup, int64_t stride_d, float* amax_gate,
                       float* amax_up) override {
    around({gate, up, dy, dgate, dup, amax_gate, amax_up}, [&] {
      backend_->swiglu_backward(gate, up, dy, n, width, stride, dgate, dup, stride_d, amax_gate,
                                amax_up);
    });
  }
  int64_t attention_saved_bytes(const AttentionShape& shape) const override {
    return backend_->attention_saved_bytes(shape);
  }
  int64_t attention_scratch_bytes(const AttentionShape& shape) const override {
    return backend_->attention_scratch_bytes(shape);
  }
  void attention(const AttentionShape& shape, const E* q, const E* k, const E* v, E* o,
                 std::byte* saved, std::byte* scratch) override {
    around({q, k, v, o, saved, scratch},
           [&] { backend_->attention(shape, q, k, v, o, saved, scratch); });
  }
  void attention_backward(const AttentionShape& shape, const E* q, const E* k, const E* v,
                          const E* o, const E* d_o, E* dq, E* dk, E* dv, const std::byte* saved,
                          std::byte* scratch) override {
    around({q, k, v, o, d_o, dq, dk, dv, saved, scratch}, [&] {
      backend_->attention_backward(shape, q, k, v, o, d_o, dq, dk, dv, saved, scratch);
    });
  }
  void embed(std::span<const int32_t> tokens, std::span<const E> table, int64_t width,
             std::span<E> y) override {
    around({tokens.data(), table.data(), y.data()},
           [&] { backend_->embed(tokens, table, width, y); });
  }
  void embed_backward(std::span<const int32_t> tokens, std::span<const E> dy, int64_t width,
                      std::span<float> dtable) override {
    around({tokens.data(), dy.data(), dtable.data()},
           [&] { backend_->embed_backward(tokens, dy, width, dtable); });
  }
  void cross_entropy(std::span<E> logits, std::span<const int32_t> targets, int64_t vocabulary,
                     float scale, bool with_gradient, std::span<float> losses,
                     float* amax) override {
    around({logits.data(), targets.data(), losses.data(), amax}, [&] {
      backend_->cross_entropy(logits, targets, vocabulary, scale, with_gradient, losses, amax);
    });
  }

 protected:
  // `addresses`: what the operation is given to read and write; some of several operands on the
  // right, moments and a WeightSpan are not among them.
  virtual void enter(std::initializer_list<const void*> /*addresses*/) {}
  virtual void leave() {}

 private:
  template <class Operation>
  void around(std::initializer_list<const void*> addresses, Operation&& operation) {
    enter(addresses);
    operation();
    leave();
  }

  class Statistics final : public StatisticsSource {
   public:
    explicit Statistics(ForwardingBackend& owner) : owner_(owner) {}

    std::vector<uint32_t> count_patterns(const MatrixView& x) override {
      return found({x.data}, [&] { return source().count_patterns(x); });
    }
    std::vector<RowMoments> row_moments(const MatrixView& x) override {
      return found({x.data}, [&] { return source().row_moments(x); });
    }
    std::vector<RowProducts> row_products(const MatrixView& x, const MatrixView& y) override {
      return found({x.data, y.data}, [&] { return source().row_products(x, y); });
    }
    QuantizationTally tally_tiles(const Quantizer& quantizer, const MatrixView& x) override {
      return found({x.data}, [&] { return source().tally_tiles(quantizer, x); });
    }
    void round(std::span<const float> x, std::span<bf16> y) override {
      owner_.around({x.data(), y.data()}, [&] { source().round(x, y); });
    }

   private:
    StatisticsSource& source() { return owner_.backend_->statistics(); }
    template <class Operation>
    auto found(std::initializer_list<const void*> addresses, Operation&& operation) {
      decltype(operation()) result;
      owner_.around(addresses, [&] { result = operation(); });
      return result;
    }

    ForwardingBackend& owner_;
  };

  std::unique_ptr<BackendOf<E>> backend_;
  Statistics statistics_{*this};
};

}  // namespace gnomon::test
