#include "lab/bench/block.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>

#include "base/errors.h"
#include "base/philox.h"
#include "base/progress.h"
#include "lab/bench/build.h"
#include "lab/bench/models.h"
#include "trainer/engine/model.h"
#include "trainer/engine/scaling.h"

namespace gnomon {
namespace {

namespace json = boost::json;

constexpr float kSpread = 0.03f;
// What libraries take besides the arenas.
constexpr int64_t kBesides = int64_t{1} << 30;

GptSize size_called(const std::string& name) {
  std::vector<std::string> names;
  for (const GptSize& size : gpt3_sizes()) {
    if (size.name == name) return size;
    names.push_back(size.name);
  }
  throw ConfigError("bench block", 0, "sizes", name, fmt::format("{}", fmt::join(names, ", ")));
}

// Counts the block alone: products and causal attention, forward and backward.
double block_flops(const ModelConfig& model, int64_t sequence, int64_t batch) {
  const double width = model.width;
  const double weights = 4 * width * width + 3 * width * model.ffn;
  const auto tokens = static_cast<double>(sequence * batch);
  return tokens * (6 * weights + 6.0 * static_cast<double>(sequence) * width);
}

class BlockBench {
 public:
  BlockBench(const BenchBlockOptions& options, Backend& backend)
      : options_(options), backend_(backend), clock_(backend.memory()) {}

  // The batches of one size and length; the model is made for the largest that fits.
  void measure(const GptSize& size, int sequence, json::array& cells) {
    const ModelConfig config = one_block(size);
    ScalingState scaling(static_cast<int>(config.sites().size()));
    std::unique_ptr<Model> model;
    int fits = 0;
    std::string trouble;
    std::vector<std::string> lacks;  // by batch
    for (int batch : options_.batches) {
      lacks.push_back(lacks_memory(config, batch, sequence));
      if (lacks.back().empty()) fits = batch;
    }
    if (fits > 0) {
      try {
        model = std::make_unique<Model>(config, fits, sequence, backend_, scaling, nullptr);
        fill_weights(*model);
      } catch (const Error& error) {
        trouble = error.what();
      }
    }
    for (size_t i = 0; i < lacks.size(); ++i) {
      const int batch = options_.batches[i];
      json::object cell{{"size", size.name}, {"width", config.width},
                        {"ffn", config.ffn}, {"sequence", sequence},
                        {"batch", batch},    {"block_flops", block_flops(config, sequence, batch)}};
      if (batch > fits) {
        cell["empty"] = lacks[i];
      } else if (!trouble.empty()) {
        cell["empty"] = trouble;
      } else {
        time(*model, sequence, batch, cell);
      }
      cells.push_back(std::move(cell));
    }
  }

 private:
  std::string lacks_memory(const ModelConfig& config, int batch, int sequence) {
    const std::optional<MemoryLeft> left = backend_.memory().left();
    if (!left) return {};
    int64_t needed = kBesides;
    for (const ArenaSize& arena : Model::measure(config, batch, sequence, backend_, {})) {
      needed += arena.bytes;
    }
    if (needed <= left->free) return {};
    return fmt::format("needs {:.1f} GB, {:.1f} GB are free", static_cast<double>(needed) / 1e9,
                       static_cast<double>(left->free) / 1e9);
  }

  static void fill_weights(Model& model) {
    fill_random(model.memory(), model.weights(), 3, kSpread);
    model.weights_changed();
  }

  void time(Model& model, int sequence, int batch, json::object& cell) {
    const auto count = static_cast<size_t>(sequence) * static_cast<size_t>(batch);
    std::vector<int32_t> tokens(count), targets(count);
    for (size_t i = 0; i < count; ++i) {
      tokens[i] = static_cast<int32_t>(philox(5, 0, i)[0] % 256);
      targets[i] = static_cast<int32_t>(philox(5, 1, i)[0] % 256);
    }
    const auto pass_of = [&](const PrecisionPlan& plan, std::vector<SitePrecision>& sites) {
      for (const std::string& site : model.sites()) sites.push_back(plan.resolve(site, 1));
      // The end is no part of the block.
      sites.back() = PrecisionPlan::bf16().resolve(model.sites().back(), 1);
      return PassPlan{.sites = &sites, .step = 1, .trains = true};
    };
    std::vector<SitePrecision> bf16_sites, fp8_sites;
    const PassPlan in_bf16 = pass_of(PrecisionPlan::bf16(), bf16_sites);
    const PassPlan in_fp8 = pass_of(PrecisionPlan::fp8(recipe_from_name(options_.recipe),
                                                       accumulate_from_name(options_.accumulate)),
                                    fp8_sites);
    const auto run = [&](const PassPlan& pass) {
      // Weights are rounded anew, as after every step.
      return BenchWork{.work = [&, pass] {
        model.weights_changed();
        model.forward_backward(pass, tokens, targets, 1.0f / static_cast<float>(count), false);
      }};
    };
    const std::vector<BenchTime> times =
        clock_.medians({run(in_bf16), run(in_fp8)}, options_.rounds);
    if (!times[0].ok() || !times[1].ok()) {
      cell["empty"] = times[0].ok() ? times[1].error : times[0].error;
      return;
    }
    cell["bf16_seconds"] = times[0].seconds;
    cell["fp8_seconds"] = times[1].seconds;
    cell["fp8_over_bf16"] = times[0].seconds / times[1].seconds;
  }

  const BenchBlockOptions& options_;
  Backend& backend_;
  BenchClock clock_;
};

}  // namespace

std::string bench_block_json(const BenchBlockOptions& options) {
  std::vector<GptSize> sizes;
  for (const std::string& name : options.sizes) sizes.push_back(size_called(name));
  if (sizes.empty()) sizes = gpt3_sizes();
  if (!std::ranges::is_sorted(options.batches) || options.batches.empty() ||
      options.batches.front() < 1) {
    throw ConfigError("bench block", 0, "batches",
                      fmt::format("{}", fmt::join(options.batches, " ")),
                      "ascending numbers of 1 or more");
  }
  for (int sequence : options.sequences) {
    if (sequence < 16 || sequence % 16 != 0) {
      throw ConfigError("bench block", 0, "sequences", std::to_string(sequence), "multiples of 16");
    }
  }
  if (recipe_from_name(options.recipe) == Recipe::kNone) {
    throw ConfigError("bench block", 0, "recipe", options.recipe, "a recipe with scales");
  }
  const std::unique_ptr<Backend> backend = backend_makers(options.device).bf16(options.threads);
  BlockBench bench(options, *backend);
  json::array cells;
  Progress progress("bench block", std::ssize(sizes) * std::ssize(options.sequences));
  int64_t done = 0;
  for (const GptSize& size : sizes) {
    for (int sequence : options.sequences) {
      progress.update(done++, fmt::format("{}, sequences of {}", size.name, sequence));
      bench.measure(size, sequence, cells);
    }
  }
  progress.update(done);
  progress.finish("all");
  json::object result{{"bench", "block"},
                      {"recipe", options.recipe},
                      {"accumulate", options.accumulate},
                      {"rounds", options.rounds.rounds},
                      {"cells", std::move(cells)}};
  add_build(*backend, result);
  return json::serialize(result);
}

}  // namespace gnomon
