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

// RMSNorm of each head of q and of k, with weights that the heads share.
template <class E>
class NormHeads final : public HeadStep<E> {
 public:
  NormHeads(const ModelConfig& config, const LayerTable& table)
      : eps_(static_cast<float>(config.norm_eps)),
        parts_{Part{table.vector("self_attn.q_norm.weight"), config.heads, {}},
               Part{table.vector("self_attn.k_norm.weight"), config.kv_heads, {}}},
        head_dim_(config.head_dim()) {}

  void allocate(Arena& arena, int64_t n) override {
    for (Part& part : parts_) {
      const int64_t heads = n * part.heads;
      part.kept.push_back({arena.allocate<E>(heads * head_dim_), arena.allocate<float>(heads)});
    }
  }
  void forward(const HeadPass<E>& pass) override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const auto [before, rstd] = kept(part, pass);
      pass.backend.norm_heads(pass.rows[i].data, pass.n, part.heads, pass.weight(part.vector), eps_,
                              pass.rows[i].stride, before, rstd);
    }
  }
  void backward(const HeadPass<E>& pass) override {
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      const auto [before, rstd] = kept(part, pass);
      pass.backend.norm_heads_backward(before, pass.weight(part.vector), rstd, pass.rows[i].data,
                                       pass.n, part.heads, pass.rows[i].stride,
                                       pass.gradient(part.vector));
    }
  }

 private:
  struct Kept {
    std::span<E> before;  // [n, heads, head_dim], what was normalised
    std::span<float> rstd;
  };
  struct Part {
    int vector;
    int heads;
    std::vector<Kept> kept;  // by HeadPass::memory
  };

  // That of the pass's tokens.
  Kept kept(const Part& part, const HeadPass<E>& pass) const {
    const Kept& all = part.kept[pass.memory];
    const auto heads = static_cast<size_t>(pass.n * part.heads);
    return {all.before.first(heads * static_cast<size_t>(head_dim_)), all.rstd.first(heads)};
  }

  float eps_;
  std::array<Part, 2> parts_;  // of q, of k
  int64_t head_dim_;
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
  if (config.qk_norm) steps.push_back(std::make_unique<NormHeads<E>>(config, table));
  steps.push_back(std::make_unique<Rotate<E>>(config));
  return steps;
}

template HeadSteps<bf16> make_head_steps(const ModelConfig&, const LayerTable&);
template HeadSteps<float> make_head_steps(const ModelConfig&, const LayerTable&);

}  // namespace gnomon
