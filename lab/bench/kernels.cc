#include "lab/bench/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/progress.h"
#include "kernels/moments.h"
#include "lab/bench/build.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr int kHeadDim = 128;
constexpr int64_t kBf16 = 2, kFp32 = 4, kCode = 1;

// A copy of `bytes` on the host by several threads, as its operations run.
void copy_on_host(int threads, const std::byte* from, int64_t bytes, std::byte* to) {
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int thread = 0; thread < threads; ++thread) {
    const int64_t begin = bytes / 64 * thread / threads * 64;
    const int64_t end = thread + 1 == threads ? bytes : bytes / 64 * (thread + 1) / threads * 64;
    std::memcpy(to + begin, from + begin, static_cast<size_t>(end - begin));
  }
}

class KernelsBench {
 public:
  explicit KernelsBench(const BenchKernelsOptions& options)
      : options_(options),
        backend_(backend_makers(options.device).bf16(options.threads)),
        clock_(memory()) {}

  json::object run() {
    casts();
    norms();
    elementwise();
    ends();
    optimizer();
    progress_.update(std::ssize(results_));
    progress_.finish("all");
    double least = std::numeric_limits<double>::max();
    for (const json::value& kernel : results_) {
      if (const json::value* found = kernel.as_object().if_contains("over_copy")) {
        least = std::min(least, found->as_double());
      }
    }
    json::object result{{"bench", "kernels"},
                        {"rounds", options_.rounds.rounds},
                        {"kernels", std::move(results_)},
                        {"least_over_copy", least}};
    add_build(*backend_, result);
    return result;
  }

 private:
  Memory& memory() { return backend_->memory(); }
  std::string shape(int64_t rows, int64_t columns) { return fmt::format("{}x{}", rows, columns); }

  // Random numbers that live as long as the kernels at hand.
  template <class T>
  std::span<T> numbers(int64_t count, uint64_t key = 7, float spread = 2) {
    auto* data = reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))).data());
    const std::span<T> all(data, static_cast<size_t>(count));
    fill_random(memory(), all, key, spread);
    return all;
  }
  std::span<std::byte> bytes(int64_t count) {
    rooms_.emplace_back(memory());
    return rooms_.back().at_least(count);
  }
  template <class T>
  std::span<T> zeros(int64_t count) {
    auto* data = reinterpret_cast<T*>(bytes(count * static_cast<int64_t>(sizeof(T))).data());
    return {data, static_cast<size_t>(count)};
  }

  void measure(const std::string& name, const std::string& shape, int64_t moved,
               std::function<void()> work) {
    progress_.update(std::ssize(results_), name);
    Buffer<std::byte> from(memory()), to(memory());
    const int64_t half = moved / 2;
    from.at_least(half);
    to.at_least(half);
    const auto copy = [&] {
      if (memory().on_host()) {
        copy_on_host(options_.threads, from.data(), half, to.data());
      } else {
        memory().copy(from.all(), to.data());
      }
    };
    const std::vector<BenchTime> times =
        clock_.medians({{.work = std::move(work)}, {.work = copy}}, options_.rounds);
    json::object result{{"name", name}, {"shape", shape}, {"bytes", moved}};
    if (times[0].ok() && times[1].ok()) {
      const auto rate = [moved](double seconds) { return static_cast<double>(moved) / seconds; };
      result["seconds"] = times[0].seconds;
      result["bytes_per_second"] = rate(times[0].seconds);
      result["copy_bytes_per_second"] = rate(times[1].seconds);
      result["over_copy"] = times[1].seconds / times[0].seconds;
    } else {
      result["error"] = times[0].ok() ? times[1].error : times[0].error;
    }
    results_.push_back(std::move(result));
  }

  Rounding rounding_of(const Quantizer& quantizer) const {
    Rounding rounding;
    rounding.quantises = true;
    rounding.quantizer = quantizer;
    Quantizer other = quantizer;  // a product of E5M2 has E4M3 on its other side
    other.format = Format::kE4m3;
    rounding.keeps_scales = backend_->keeps_scales({}, quantizer, other, false);
    if (rounding.whole_tensor()) rounding.given = 64.0f;
    return rounding;
  }

  void cast(const std::string& name, const Quantizer& quantizer, unsigned wanted, int64_t codes) {
    const int64_t rows = options_.tokens, columns = options_.width;
    const std::span<bf16> x = numbers<bf16>(rows * columns);
    OwnOperand<bf16> own(memory());
    GemmOperand<bf16>& operand = own.of(x);
    const Rounding rounding = rounding_of(quantizer);
    // What is stored by way of BF16 values is not stored as codes.
    const int64_t stored = rounding.keeps_scales ? codes * kCode : kBf16;
    measure(name, shape(rows, columns), rows * columns * (kBf16 + stored), [=, this, &operand] {
      operand.renew(x);
      backend_->quantize(operand, rows, columns, rounding, wanted);
    });
    rooms_.clear();
  }

  void casts() {
    const int64_t elements = options_.tokens * options_.width;
    const std::span<bf16> x = numbers<bf16>(elements);
    const std::span<float> most = zeros<float>(1);
    measure("amax", shape(options_.tokens, options_.width), elements * kBf16,
            [=, this] { backend_->amax(x, most.data()); });
    const std::span<float> sums = numbers<float>(elements);
    const std::span<bf16> y = zeros<bf16>(elements);
    measure("round sums to BF16", shape(options_.tokens, options_.width),
            elements * (kFp32 + kBf16), [=, this] { backend_->round_sum(sums, y); });
    rooms_.clear();
    const Quantizer tensor{Format::kE4m3, {}, ScaleRule::kGiven};
    const Quantizer gradient{Format::kE5m2, {}, ScaleRule::kGiven};
    const Quantizer rows{Format::kE4m3, {1, 0}, ScaleRule::kFp32};
    const Quantizer block{Format::kE4m3, {1, 128}, ScaleRule::kFp32};
    cast("cast, one scale", tensor, kAsStored, 1);
    cast("cast and transpose, one scale", tensor, kAsStored | kTransposed, 2);
    cast("cast and transpose, one scale, E5M2", gradient, kAsStored | kTransposed, 2);
    cast("transpose cast, one scale", tensor, kTransposed, 1);
    cast("cast, a scale for a row", rows, kAsStored, 1);
    cast("cast, a scale for 128", block, kAsStored, 1);
  }

  void norms() {
    const int64_t rows = options_.tokens, width = options_.width, elements = rows * width;
    const auto residual = numbers<bf16>(elements, 1), x = numbers<bf16>(elements, 2);
    const auto w = numbers<bf16>(width, 3);
    const auto sum = zeros<bf16>(elements), y = zeros<bf16>(elements);
    const auto rstd = zeros<float>(rows);
    measure("add and RMSNorm", shape(rows, width), elements * 4 * kBf16 + rows * kFp32,
            [=, this] { backend_->add_rms_norm(residual, x, w, 1e-5f, sum, y, rstd); });
    const auto d_residual = numbers<bf16>(elements, 4, 0);
    const auto dw = zeros<float>(width);
    measure("RMSNorm backward", shape(rows, width), elements * 4 * kBf16 + rows * kFp32,
            [=, this] { backend_->rms_norm_backward(sum, w, rstd, x, d_residual, dw); });
    rooms_.clear();
  }

  void elementwise() {
    const int64_t rows = options_.tokens, width = options_.ffn, elements = rows * width;
    const auto both = numbers<bf16>(2 * elements, 1), dy = numbers<bf16>(elements, 2);
    const auto y = zeros<bf16>(elements), d_both = zeros<bf16>(2 * elements);
    measure("SwiGLU", shape(rows, width), elements * 3 * kBf16, [=, this] {
      backend_->swiglu(both.data(), both.data() + width, rows, width, 2 * width, y.data());
    });
    OwnOperand<bf16> own(memory());
    GemmOperand<bf16>& operand = own.of(y);
    const CopyAlong<bf16> copy{&operand, rounding_of({Format::kE4m3, {}, ScaleRule::kGiven}),
                               kAsStored | kTransposed};
    const int64_t codes = copy.rounding.keeps_scales ? 2 * kCode : kBf16;
    measure("SwiGLU, cast and transpose, one scale", shape(rows, width),
            elements * (3 * kBf16 + codes), [=, this, &operand, &copy] {
              operand.renew(y);
              backend_->swiglu(both.data(), both.data() + width, rows, width, 2 * width, y.data(),
                               nullptr, &copy);
            });
    measure("SwiGLU backward", shape(rows, width), elements * 5 * kBf16, [=, this] {
      backend_->swiglu_backward(both.data(), both.data() + width, dy.data(), rows, width, 2 * width,
                                d_both.data(), d_both.data() + width, 2 * width);
    });
    rooms_.clear();
    const int heads = static_cast<int>(options_.width / kHeadDim);
    const auto q = numbers<bf16>(rows * options_.width, 1);
    measure("rotation", shape(rows, options_.width), rows * options_.width * 2 * kBf16, [=, this] {
      backend_->rope(q.data(), rows, std::min<int64_t>(rows, 1024), heads, kHeadDim, Rotary{},
                     false, 0);
    });
    const auto bias = numbers<bf16>(options_.width, 2);
    const auto db = zeros<float>(options_.width);
    measure("bias", shape(rows, options_.width), rows * options_.width * 2 * kBf16,
            [=, this] { backend_->add_bias(q.data(), rows, bias, 0); });
    measure("bias backward", shape(rows, options_.width), rows * options_.width * kBf16,
            [=, this] { backend_->bias_backward(q.data(), rows, db, 0); });
    rooms_.clear();
  }

  void ends() {
    const int64_t rows = options_.logit_rows, vocabulary = options_.vocabulary;
    const auto logits = numbers<bf16>(rows * vocabulary, 1);
    const auto targets = zeros<int32_t>(rows);
    const auto losses = zeros<float>(rows);
    measure(
        "cross-entropy and its gradient", shape(rows, vocabulary), rows * vocabulary * 2 * kBf16,
        [=, this] { backend_->cross_entropy(logits, targets, vocabulary, 1e-4f, true, losses); });
    rooms_.clear();
    const int64_t tokens = options_.tokens, width = options_.width;
    const auto table = numbers<bf16>(vocabulary * width, 1);
    const auto at = zeros<int32_t>(tokens);
    fill_on_host(memory(), at, [vocabulary](std::span<int32_t> all) {
      for (size_t i = 0; i < all.size(); ++i) {
        all[i] = static_cast<int32_t>(static_cast<int64_t>(i) * 7919 % vocabulary);
      }
    });
    const auto y = zeros<bf16>(tokens * width);
    measure("embedding", shape(tokens, width), tokens * width * 2 * kBf16,
            [=, this] { backend_->embed(at, table, width, y); });
    rooms_.clear();
  }

  void adamw(const std::string& name, MomentSpan m, MomentSpan v, int64_t moment_bytes) {
    const int64_t count = options_.parameters;
    const auto gradient = numbers<float>(count, 1, 1e-3f), master = numbers<float>(count, 2, 0.1f);
    const auto weight = zeros<bf16>(count);
    const UpdateStep step{.learning_rate = 1e-5f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .eps = 1e-8f,
                          .weight_decay = 0.1f,
                          .bias_correction1 = 0.5f,
                          .bias_correction2 = 0.5f,
                          .gradient_scale = 1.0f,
                          .seed = 1,
                          .step = 1};
    // Gradient read; master and moments read and written; weight written.
    measure(name, fmt::format("{}", count), count * (kFp32 + 2 * kFp32 + kBf16) + 2 * moment_bytes,
            [=, this] {
              backend_->update(step, gradient, {m, v}, master, weight);
            });
    rooms_.clear();
  }

  void optimizer() {
    const int64_t count = options_.parameters;
    adamw("AdamW", zeros<float>(count), zeros<float>(count), 2 * kFp32 * count);
    adamw("AdamW, moments in BF16", zeros<bf16>(count), zeros<bf16>(count), 2 * kBf16 * count);
    const auto fp8 = [&] {
      return Fp8Moments{zeros<uint8_t>(count), zeros<float>(moment_blocks(count))};
    };
    adamw("AdamW, moments in FP8", fp8(), fp8(), 2 * (count + kFp32 * moment_blocks(count)));
    const auto gradient = numbers<float>(count, 1);
    // It gives its sum to the host, which waits for it.
    measure("sum of squares", fmt::format("{}", count), count * kFp32,
            [=, this] { backend_->sum_of_squares(gradient); });
    rooms_.clear();
  }

  const BenchKernelsOptions& options_;
  std::unique_ptr<Backend> backend_;
  BenchClock clock_;
  std::vector<Buffer<std::byte>> rooms_;
  json::array results_;
  Progress progress_{"bench kernels", 0};
};

void check(const char* key, int64_t value, int64_t multiple) {
  if (value > 0 && value % multiple == 0) return;
  throw ConfigError("bench kernels", 0, key, std::to_string(value),
                    fmt::format("a multiple of {}", multiple));
}

}  // namespace

std::string bench_kernels_json(const BenchKernelsOptions& options) {
  check("tokens", options.tokens, 128);
  check("width", options.width, 128);
  check("ffn", options.ffn, 128);
  check("vocabulary", options.vocabulary, 16);
  check("logit-rows", options.logit_rows, 1);
  check("parameters", options.parameters, kMomentBlock);
  return json::serialize(KernelsBench(options).run());
}

}  // namespace gnomon
