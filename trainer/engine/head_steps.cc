#include "trainer/engine/head_steps.h"

namespace gnomon {
namespace {

template <class E>
class AddBiases final : public HeadStep<E> {
 public:
  explicit AddBiases(const LayerTable& table)
      : vectors_{table.vector("self_attn.q_proj.bias"), table.vector("self_attn.k_proj.bias"),
                 table.vector("self_attn.v_proj.bias")} {}

  void forward(const HeadPass<E>& pass) override {
    for (size_t i = 0; i < vectors_.size(); ++i) {
      pass.backend.add_bias(pass.rows[i].data, pass.n, pass.weight(vectors_[i]),
                            pass.rows[i].stride);
    }
  }
  void backward(const HeadPass<E>& pass) override {
    for (size_t i = 0; i < vectors_.size(); ++i) {
      pass.backend.bias_backward(pass.rows[i].data, pass.n, pass.gradient(vectors_[i]),
                                 pass.rows[i].stride);
    }
  }

 private:
  std::array<int, 3> vectors_;
};

template <class E>
class Rotate final : public HeadStep<E> {
 public:
  explicit Rotate(const ModelConfig& config)
      : heads_(config.heads),
        kv_heads_(config.kv_heads),
        head_dim_(config.head_dim()),
        rotary_(config.rotary()) {}

  void forward(const HeadPass<E>& pass) override {
    turn(pass, 0, heads_ + kv_heads_, false);  // k's heads follow q's
  }
  void backward(const HeadPass<E>& pass) override {
    turn(pass, 0, heads_, true);
    turn(pass, 1, kv_heads_, true);
  }

 private:
  void turn(const HeadPass<E>& pass, size_t which, int heads, bool inverse) const {
    const StridedRows<E>& rows = pass.rows[which];
    pass.backend.rope(rows.data, pass.n, pass.tokens, heads, head_dim_, rotary_, inverse,
                      rows.stride);
  }

  int heads_, kv_heads_, head_dim_;
  Rotary rotary_;
};

}  // namespace

template <class E>
HeadSteps<E> make_head_steps(const ModelConfig& config, const LayerTable& table) {
  HeadSteps<E> steps;
  if (config.qkv_bias) steps.push_back(std::make_unique<AddBiases<E>>(table));
  steps.push_back(std::make_unique<Rotate<E>>(config));
  return steps;
}

template HeadSteps<bf16> make_head_steps(const ModelConfig&, const LayerTable&);
template HeadSteps<float> make_head_steps(const ModelConfig&, const LayerTable&);

}  // namespace gnomon
