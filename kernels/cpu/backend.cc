// The CPU backend: the operations of ops.h behind the interface, with the products, tables and
// scratch memory that they keep between calls. One thread calls it at a time.
#include "kernels/backend.h"

#include <cmath>
#include <fstream>
#include <map>
#include <tuple>

#include "base/errors.h"
#include "fmt/format.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/ops.h"

namespace gnomon {
namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

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
    default:
      return "isa below avx512";
  }
}

// cos and sin of position·theta^(−2i/head_dim), [tokens, head_dim/2], computed in FP64.
struct RopeTable {
  RopeTable(int64_t tokens, int head_dim, double theta) {
    int half = head_dim / 2;
    for (int64_t position = 0; position < tokens; ++position) {
      for (int i = 0; i < half; ++i) {
        double angle = static_cast<double>(position) * std::pow(theta, -2.0 * i / head_dim);
        cosines.push_back(static_cast<float>(std::cos(angle)));
        sines.push_back(static_cast<float>(std::sin(angle)));
      }
    }
  }
  std::vector<float> cosines;
  std::vector<float> sines;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : threads_(threads), gemms_(threads) {}

  std::string name() const override { return "cpu"; }
  std::string device() const override {
    return fmt::format("{} ({})", cpu_model(), isa_name(dnnl::get_effective_cpu_isa()));
  }
  std::string libraries() const override {
    const dnnl_version_t* version = dnnl_version();
    return fmt::format("oneDNN {}.{}.{}, compiler {}", version->major, version->minor,
                       version->patch, __VERSION__);
  }
  int threads() const override { return threads_; }

  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, bf16* c) override {
    gemms_.run(shape, alpha, a, b, c, false, false);
  }
  void gemm(const GemmShape& shape, float alpha, const bf16* a, const bf16* b, float* c,
            bool accumulate) override {
    gemms_.run(shape, alpha, a, b, c, true, accumulate);
  }

  float amax(std::span<const bf16> x) override { return cpu::amax(threads_, x); }
  QuantizeCounts quantize(std::span<const bf16> x, Format format, float scale,
                          std::span<bf16> y) override {
    return cpu::quantize(threads_, x, format, scale, y);
  }

  void round_to_bf16(std::span<const float> x, std::span<bf16> y) override {
    cpu::round_to_bf16(threads_, x, y);
  }

  void add_rms_norm(std::span<bf16> residual, std::span<const bf16> x, std::span<const bf16> w,
                    float eps, std::span<bf16> y, std::span<float> rstd) override {
    cpu::add_rms_norm(threads_, residual, x, w, eps, y, rstd);
  }
  void rms_norm_backward(std::span<const bf16> residual, std::span<const bf16> w,
                         std::span<const float> rstd, std::span<const bf16> dy,
                         std::span<bf16> d_residual, std::span<float> dw) override {
    cpu::rms_norm_backward(threads_, residual, w, rstd, dy, d_residual, dw,
                           per_thread(std::ssize(w)));
  }
  void add_bias(std::span<bf16> y, std::span<const bf16> bias) override {
    cpu::add_bias(threads_, y, bias);
  }
  void bias_backward(std::span<const bf16> dy, std::span<float> db) override {
    cpu::bias_backward(threads_, dy, db, per_thread(std::ssize(db)));
  }
  void rope(std::span<bf16> x, int64_t tokens_per_sequence, int heads, int head_dim, double theta,
            bool inverse) override {
    auto [entry, inserted] = rope_tables_.try_emplace({tokens_per_sequence, head_dim, theta},
                                                      tokens_per_sequence, head_dim, theta);
    const RopeTable& table = entry->second;
    cpu::rope(threads_, x, tokens_per_sequence, heads, head_dim, table.cosines, table.sines,
              inverse);
  }
  void swiglu(std::span<const bf16> gate, std::span<const bf16> up, std::span<bf16> y) override {
    cpu::swiglu(threads_, gate, up, y);
  }
  void swiglu_backward(std::span<const bf16> gate, std::span<const bf16> up,
                       std::span<const bf16> dy, std::span<bf16> dgate,
                       std::span<bf16> dup) override {
    cpu::swiglu_backward(threads_, gate, up, dy, dgate, dup);
  }

  int64_t attention_saved_bytes(const AttentionShape& shape) const override {
    return cpu::Attention::saved_bytes(shape);
  }
  int64_t attention_scratch_bytes(const AttentionShape& shape) const override {
    return cpu::Attention::scratch_bytes(shape, threads_);
  }
  void attention(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
                 std::byte* saved, std::byte* scratch) override {
    attention_of(shape).forward(q, k, v, o, saved, scratch);
  }
  void attention_backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                          const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                          const std::byte* saved, std::byte* scratch) override {
    attention_of(shape).backward(q, k, v, o, d_o, dq, dk, dv, saved, scratch);
  }

  void embed(std::span<const int32_t> tokens, std::span<const bf16> table, int64_t width,
             std::span<bf16> y) override {
    cpu::embed(threads_, tokens, table, width, y);
  }
  void embed_backward(std::span<const int32_t> tokens, std::span<const bf16> dy, int64_t width,
                      std::span<float> dtable) override {
    cpu::embed_backward(threads_, tokens, dy, width, dtable);
  }
  void cross_entropy(std::span<bf16> logits, std::span<const int32_t> targets, int64_t vocabulary,
                     float scale, bool with_gradient, std::span<float> losses) override {
    cpu::cross_entropy(threads_, logits, targets, vocabulary, scale, with_gradient, losses,
                       per_thread(vocabulary));
  }

  double sum_of_squares(std::span<const float> x) override {
    return cpu::sum_of_squares(threads_, x);
  }
  void adamw(const AdamwStep& step, std::span<const float> gradient, std::span<float> m,
             std::span<float> v, std::span<float> master, std::span<bf16> weight) override {
    cpu::adamw(threads_, step, gradient, m, v, master, weight);
  }
  void zero(std::span<float> x) override { cpu::zero(threads_, x); }

 private:
  // Scratch of `width` floats for each thread.
  std::span<float> per_thread(int64_t width) {
    int64_t count = width * threads_;
    std::byte* memory = per_thread_.at_least(count * static_cast<int64_t>(sizeof(float)));
    return {reinterpret_cast<float*>(memory), static_cast<size_t>(count)};
  }

  cpu::Attention& attention_of(const AttentionShape& shape) {
    auto key =
        std::tuple(shape.tokens, shape.heads, shape.kv_heads, shape.head_dim, shape.sequences);
    std::unique_ptr<cpu::Attention>& attention = attentions_[key];
    if (attention == nullptr) {
      attention = std::make_unique<cpu::Attention>(gemms_.engine(), shape, threads_);
    }
    return *attention;
  }

  int threads_;
  cpu::GemmCache gemms_;
  cpu::GrowingScratch per_thread_;
  std::map<std::tuple<int64_t, int, double>, RopeTable> rope_tables_;
  std::map<std::tuple<int64_t, int, int, int, int64_t>, std::unique_ptr<cpu::Attention>>
      attentions_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(int threads) {
  if (threads < 1)
    throw Error(fmt::format("{} CPU threads asked for; accepted are 1 and more", threads));
  return std::make_unique<CpuBackend>(threads);
}

}  // namespace gnomon
