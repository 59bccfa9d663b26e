#include "lab/bench/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <optional>

#include "base/errors.h"
#include "base/progress.h"
#include "lab/bench/build.h"
#include "lab/bench/models.h"
#include "trainer/engine/architecture.h"
#include "trainer/engine/scaling.h"

namespace gnomon {
namespace {

namespace json = boost::json;

struct GemmProblem {
  std::string model, site;
  Gemm gemm = Gemm::kFprop;
  GemmShape shape;

  double flops() const {
    return 2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) *
           static_cast<double>(shape.k);
  }
  // Columns of the operands as they are stored.
  int64_t columns_a() const { return shape.transpose_a ? shape.m : shape.k; }
  int64_t columns_b() const { return shape.transpose_b ? shape.k : shape.n; }
};

void add_layer(const std::string& model, const std::string& site, int64_t n, int64_t in,
               int64_t out, std::vector<GemmProblem>& problems) {
  problems.push_back({model, site, Gemm::kFprop, {.m = n, .n = out, .k = in, .transpose_b = true}});
  problems.push_back({model, site, Gemm::kDgrad, {.m = n, .n = in, .k = out}});
  problems.push_back({model, site, Gemm::kWgrad, {.m = out, .n = in, .k = n, .transpose_a = true}});
}

std::vector<GemmProblem> problems_of(const BenchGemmOptions& options) {
  std::vector<GemmProblem> problems;
  for (const std::string& size : options.sizes) {
    int64_t numbers[3] = {};
    const char* at = size.data();
    const char* const end = at + size.size();
    for (int i = 0; i < 3; ++i) {
      const auto [next, error] = std::from_chars(at, end, numbers[i]);
      const bool ends_well = i < 2 ? next < end && *next == 'x' : next == end;
      if (error != std::errc() || !ends_well || numbers[i] < 1) {
        throw ConfigError("bench gemm", 0, "size", size,
                          "MxNxK, three numbers of 1 or more, like 8192x8192x8192");
      }
      at = next + (i < 2 ? 1 : 0);
    }
    problems.push_back({"",
                        size,
                        Gemm::kFprop,
                        {.m = numbers[0], .n = numbers[1], .k = numbers[2], .transpose_b = true}});
  }
  for (const std::string& name : options.models) {
    const ModelConfig model = bench_model(name);
    for (const LayerProduct& it : layer_products(model)) {
      add_layer(name, it.name, options.tokens, it.in, it.out, problems);
    }
  }
  if (problems.empty()) {
    throw ConfigError("bench gemm", 0, "models", "none", "a model or a size");
  }
  return problems;
}

// One operand of the products at hand, with the copy that a product of FP8 values reads.
class Side {
 public:
  explicit Side(Memory& memory) : memory_(memory), values_(memory), operand_(memory) {}

  void fill(int64_t elements, uint64_t key) {
    const bool grows = elements > std::ssize(values_.all());
    content_ = values_.at_least(elements);
    if (grows) fill_random(memory_, values_.all(), key);
    operand_.of(content_);
  }
  std::span<const bf16> values() const { return content_; }
  GemmOperand<bf16>& operand() { return operand_.operand(); }

 private:
  Memory& memory_;
  Buffer<bf16> values_;
  OwnOperand<bf16> operand_;
  std::span<const bf16> content_;
};

class GemmBench {
 public:
  explicit GemmBench(const BenchGemmOptions& options)
      : options_(options),
        backend_(backend_makers(options.device).bf16(options.threads)),
        clock_(backend_->memory()),
        a_(backend_->memory()),
        b_(backend_->memory()),
        c_(backend_->memory()) {}

  Backend& backend() { return *backend_; }

  json::object measure(const GemmProblem& problem) {
    const GemmShape& shape = problem.shape;
    a_.fill(shape.m * shape.k, 1);
    b_.fill(shape.k * shape.n, 2);
    c_.at_least(shape.m * shape.n);
    std::vector<BenchWork> works = {{.work = [&] { plain(problem); }}};
    std::vector<std::string> recipes;
    for (const std::string& name : options_.recipes) {
      for (const std::string& how : options_.accumulate) {
        const Accumulate sums = accumulate_from_name(how);
        const GemmPrecision precision = precision_of(name, sums, problem.gemm);
        if (!precision.fp8) continue;  // a recipe may leave this GEMM in BF16
        if (sums == Accumulate::kHopper && !differs(precision, problem.gemm)) continue;
        recipes.push_back(sums == Accumulate::kHopper ? name + "/hopper" : name);
        works.push_back({.work = [this, problem, precision] { multiply(problem, precision); },
                         .before = [this, problem, precision] { cast(problem, precision); }});
        works.push_back({.work = [this, problem, precision] {
          cast(problem, precision);
          multiply(problem, precision);
        }});
      }
    }
    const std::vector<BenchTime> times = clock_.medians(works, options_.rounds);
    return result(problem, recipes, times);
  }

 private:
  static GemmPrecision precision_of(const std::string& recipe, Accumulate sums, Gemm gemm) {
    const PrecisionPlan plan = PrecisionPlan::fp8(recipe_from_name(recipe), sums);
    return plan.resolve("model.layers.0.x", 1)[gemm];
  }

  // A device has fast accumulation for what is never promoted, and its usual sums for all else.
  bool differs(const GemmPrecision& precision, Gemm gemm) const {
    if (precision.recipe == Recipe::kMx) return false;
    return options_.device == Device::kCpu || precision.promotion(gemm) == 0;
  }

  static Accumulation accumulation_of(const GemmPrecision& precision, Gemm gemm) {
    return {.hopper = precision.accumulate == Accumulate::kHopper,
            .promote_every = precision.promotion(gemm)};
  }

  void plain(const GemmProblem& problem) {
    const bf16* a = a_.values().data();
    const bf16* b = b_.values().data();
    if (problem.gemm == Gemm::kWgrad) {
      backend_->gemm(problem.shape, 1.0f, a, b, c_.data(), false);
    } else {
      backend_->gemm(problem.shape, 1.0f, a, b, reinterpret_cast<bf16*>(c_.data()));
    }
  }

  // Both operands as LinearLayers rounds them, and as no earlier product left them.
  void cast(const GemmProblem& problem, const GemmPrecision& precision) {
    const Gemm gemm = problem.gemm;
    const TensorRole left = gemm == Gemm::kFprop ? TensorRole::kInput : TensorRole::kGradient;
    const TensorRole right = gemm == Gemm::kWgrad ? TensorRole::kInput : TensorRole::kWeight;
    const Quantizer of_a = quantizer_for(precision, left, gemm);
    const Quantizer of_b = quantizer_for(precision, right, gemm);
    const bool keeps =
        backend_->keeps_scales(accumulation_of(precision, gemm), of_a, of_b, gemm == Gemm::kWgrad);
    const auto one = [&](Side& side, const Quantizer& quantizer, int64_t columns, bool transposed) {
      GemmOperand<bf16>& operand = side.operand();
      operand.renew(side.values());
      Rounding rounding;
      rounding.quantises = true;
      rounding.quantizer = quantizer;
      rounding.keeps_scales = keeps;
      if (rounding.whole_tensor() && quantizer.rule == ScaleRule::kGiven) {
        rounding.given = 64.0f;  // known from the steps before
      } else if (rounding.whole_tensor()) {
        backend_->amax(operand.data, operand.scalars + kAmax);
      }
      const int64_t rows = std::ssize(operand.data) / columns;
      backend_->quantize(operand, rows, columns, rounding, transposed ? kTransposed : kAsStored);
    };
    one(a_, of_a, problem.columns_a(), problem.shape.transpose_a);
    one(b_, of_b, problem.columns_b(), !problem.shape.transpose_b);
  }

  void multiply(const GemmProblem& problem, const GemmPrecision& precision) {
    const GemmOperand<bf16>* right = &b_.operand();
    const Accumulation sums = accumulation_of(precision, problem.gemm);
    if (problem.gemm == Gemm::kWgrad) {
      backend_->gemm(problem.shape, sums, a_.operand(), *right, c_.data(), false);
    } else {
      backend_->gemm(problem.shape, sums, a_.operand(), std::span(&right, 1),
                     reinterpret_cast<bf16*>(c_.data()));
    }
  }

  static json::object result(const GemmProblem& problem, const std::vector<std::string>& recipes,
                             const std::vector<BenchTime>& times) {
    const auto rate = [&](double seconds) { return problem.flops() / seconds; };
    const BenchTime& plain = times[0];
    json::object in_bf16, in_fp8;
    if (plain.ok()) {
      in_bf16 = {{"seconds", plain.seconds}, {"flops_per_second", rate(plain.seconds)}};
    } else {
      in_bf16 = {{"error", plain.error}};
    }
    for (size_t i = 0; i < recipes.size(); ++i) {
      const BenchTime& alone = times[1 + 2 * i];
      const BenchTime& with_cast = times[2 + 2 * i];
      if (!alone.ok() || !with_cast.ok()) {
        in_fp8[recipes[i]] = {{"error", alone.ok() ? with_cast.error : alone.error}};
        continue;
      }
      json::object it{{"seconds", alone.seconds},
                      {"with_cast_seconds", with_cast.seconds},
                      {"flops_per_second", rate(alone.seconds)}};
      if (plain.ok()) {
        it["over_bf16"] = plain.seconds / alone.seconds;
        it["with_cast_over_bf16"] = plain.seconds / with_cast.seconds;
      }
      in_fp8[recipes[i]] = std::move(it);
    }
    return {{"model", problem.model},
            {"site", problem.site},
            {"gemm", std::string(gemm_name(problem.gemm))},
            {"m", problem.shape.m},
            {"n", problem.shape.n},
            {"k", problem.shape.k},
            {"bf16", std::move(in_bf16)},
            {"fp8", std::move(in_fp8)}};
  }

  const BenchGemmOptions& options_;
  std::unique_ptr<Backend> backend_;
  BenchClock clock_;
  Side a_, b_;
  Buffer<float> c_;
};

// Calls `use` with every timed precision of the products: "bf16" or "fp8", and its object.
template <class Use>
void for_each_rate(json::array& products, Use use) {
  for (json::value& product : products) {
    json::object& object = product.get_object();
    const auto one = [&](const char* kind, json::object& timed) {
      if (timed.contains("flops_per_second")) use(kind, timed);
    };
    one("bf16", object["bf16"].get_object());
    for (auto& [recipe, timed] : object["fp8"].get_object()) one("fp8", timed.get_object());
  }
}

}  // namespace

std::string bench_gemm_json(const BenchGemmOptions& options) {
  const std::vector<GemmProblem> problems = problems_of(options);
  for (const std::string& recipe : options.recipes) {
    if (recipe_from_name(recipe) == Recipe::kNone) {
      throw ConfigError("bench gemm", 0, "recipes", recipe, "recipes with scales");
    }
  }
  for (const std::string& how : options.accumulate) accumulate_from_name(how);
  GemmBench bench(options);
  json::array products;
  Progress progress("bench gemm", std::ssize(problems));
  for (const GemmProblem& problem : problems) {
    progress.update(std::ssize(products),
                    fmt::format("{} {} {}", problem.model, problem.site, gemm_name(problem.gemm)));
    products.push_back(bench.measure(problem));
  }
  progress.update(std::ssize(products));
  progress.finish("all");
  json::object highest{{"bf16", 0.0}, {"fp8", 0.0}};
  for_each_rate(products, [&](const char* kind, json::object& timed) {
    highest[kind] = std::max(highest[kind].as_double(), timed["flops_per_second"].as_double());
  });
  for_each_rate(products, [&](const char* kind, json::object& timed) {
    timed["share"] = timed["flops_per_second"].as_double() / highest[kind].as_double();
  });
  json::object result{{"bench", "gemm"},
                      {"tokens", options.tokens},
                      {"data", "random, uniform"},
                      {"rounds", options.rounds.rounds},
                      {"highest_flops_per_second", std::move(highest)},
                      {"products", std::move(products)}};
  add_build(bench.backend(), result);
  return json::serialize(result);
}

}  // namespace gnomon
