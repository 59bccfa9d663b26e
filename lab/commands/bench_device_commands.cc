// The benchmarks of what a device computes: `gnomon bench gemm`, `bench kernels`, `bench block`.
#include <fmt/format.h>

#include <boost/json.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/files.h"
#include "cli/json_output.h"
#include "cli/table.h"
#include "lab/bench/block.h"
#include "lab/bench/gemm.h"
#include "lab/bench/kernels.h"
#include "lab/commands/bench_options.h"
#include "lab/commands/commands.h"

namespace gnomon::cli {
namespace {

namespace json = boost::json;

// What is measured unless something else is asked for. On a CPU the same would take hours.
struct GemmDefaults {
  std::vector<std::string> models, sizes;
  int64_t tokens;
  std::vector<std::string> accumulate;
};
GemmDefaults gemm_defaults(Device device) {
  if (device == Device::kCpu) return {{"llama-1b"}, {"1024x1024x1024"}, 128, {"fp32"}};
  return {{"llama-1b", "llama-3b", "llama-8b", "llama-70b"},
          {"8192x8192x8192"},
          8192,
          {"fp32", "hopper"}};
}

double number(const json::value& object, const char* key) {
  return object.at(key).to_number<double>();
}

void add_rounds(Command& command, BenchRounds& rounds) {
  command
      .add_option("--rounds", rounds.rounds,
                  "In which everything has its turn; medians are "
                  "reported")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  command
      .add_option("--seconds", rounds.least_seconds, "That each thing runs in a round, at least")
      ->check(in_range(0.0, 60.0))
      ->capture_default_str();
}

void print_machine(const json::object& result) {
  fmt::print("{}; {}\n", result.at("machine").as_string().c_str(),
             result.at("libraries").as_string().c_str());
}

// ---- gemm ----

void print_gemm(const json::object& result) {
  Table table({"model", "site", "gemm", ">m x n x k", ">BF16 TFLOP/s", "recipe", ">FP8 TFLOP/s",
               ">over BF16", ">with cast"});
  for (const json::value& product : result.at("products").as_array()) {
    const auto word = [&](const char* key) { return product.at(key).as_string().c_str(); };
    const auto tera = [](const json::value& timed) {
      return timed.as_object().contains("error")
                 ? std::string("-")
                 : fmt::format("{:.3g}", number(timed, "flops_per_second") / 1e12);
    };
    for (const auto& entry : product.at("fp8").as_object()) {
      const json::value& timed = entry.value();
      const bool compared = timed.as_object().contains("over_bf16");
      const auto ratio = [&](const char* key) {
        return compared ? fmt::format("{:.2f}", number(timed, key)) : std::string("-");
      };
      table.add({word("model"), word("site"), word("gemm"),
                 fmt::format("{} x {} x {}", product.at("m").as_int64(), product.at("n").as_int64(),
                             product.at("k").as_int64()),
                 tera(product.at("bf16")), std::string(entry.key()), tera(timed),
                 ratio("over_bf16"), ratio("with_cast_over_bf16")});
    }
  }
  fmt::print("{}", table.text());
  print_machine(result);
}

void add_gemm(Command& bench) {
  struct Options {
    BenchGemmOptions bench;
    DeviceChoice device;
    std::optional<int64_t> tokens;
    std::vector<std::string> accumulate;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  Command* command = bench.add_subcommand(
      "gemm", "The products of linear layers: FP8, with the casts and without, beside BF16");
  add_bench_device_options(*command, options->device, options->bench.threads);
  command->add_option(
      "--shapes", options->bench.models,
      "Models whose layers' products are measured (default, unless there is a "
      "--size: llama-1b llama-3b llama-8b llama-70b, and 8192x8192x8192; on the CPU "
      "llama-1b and 1024x1024x1024)");
  command->add_option("--size", options->bench.sizes, "MxNxK: tokens, outputs, inputs");
  command
      ->add_option("--tokens", options->tokens,
                   "Tokens in the models' products (default: 8192; on the CPU 128)")
      ->check(in_range(int64_t{16}, int64_t{1} << 20));
  command->add_option("--recipe", options->bench.recipes, "One or more recipes")
      ->capture_default_str();
  command
      ->add_option("--accumulate", options->accumulate,
                   "How FP8 products add up: fp32, hopper or both (default: both; on the CPU fp32, "
                   "since the other is emulated there, slowly)")
      ->check(one_of({"fp32", "hopper"}));
  add_rounds(*command, options->bench.rounds);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Example:\n  gnomon bench gemm --device cuda --json");
  command->callback([options] {
    BenchGemmOptions& it = options->bench;
    it.device = options->device.chosen();
    GemmDefaults defaults = gemm_defaults(it.device);
    it.tokens = options->tokens.value_or(defaults.tokens);
    it.accumulate = options->accumulate.empty() ? defaults.accumulate : options->accumulate;
    if (it.models.empty() && it.sizes.empty()) {
      it.models = std::move(defaults.models);
      it.sizes = std::move(defaults.sizes);
    }
    const json::value result = json::parse(bench_gemm_json(options->bench));
    options->json ? fmt::print("{}", pretty_json(result)) : print_gemm(result.as_object());
  });
}

// ---- kernels ----

void print_kernels(const json::object& result) {
  Table table({"kernel", ">shape", ">GB/s", ">copy GB/s", ">over copy"});
  for (const json::value& kernel : result.at("kernels").as_array()) {
    const auto giga = [&](const char* key) {
      return kernel.as_object().contains(key) ? fmt::format("{:.1f}", number(kernel, key) / 1e9)
                                              : std::string("-");
    };
    table.add({kernel.at("name").as_string().c_str(), kernel.at("shape").as_string().c_str(),
               giga("bytes_per_second"), giga("copy_bytes_per_second"),
               kernel.as_object().contains("over_copy")
                   ? fmt::format("{:.2f}", number(kernel, "over_copy"))
                   : kernel.at("error").as_string().c_str()});
  }
  fmt::print("{}", table.text());
  print_machine(result);
}

void add_kernels(Command& bench) {
  struct Options {
    BenchKernelsOptions bench;
    DeviceChoice device;
    std::optional<int64_t> parameters;
    bool json = false;

    void settle() {
      bench.device = device.chosen();
      const int64_t bits = bench.device == Device::kCpu ? 24 : 27;
      bench.parameters = parameters.value_or(int64_t{1} << bits);
    }
  };
  auto options = std::make_shared<Options>();
  Command* command = bench.add_subcommand(
      "kernels", "What memory bounds, in bytes read and written, beside a copy in the same memory");
  BenchKernelsOptions& it = options->bench;
  add_bench_device_options(*command, options->device, it.threads);
  const auto length = [&](const char* name, int64_t& value, const char* what) {
    command->add_option(name, value, what)
        ->check(in_range(int64_t{1}, int64_t{1} << 34))
        ->capture_default_str();
  };
  length("--tokens", it.tokens, "Rows of activations, a multiple of 128");
  length("--width", it.width, "Width of the residual stream, a multiple of 128");
  length("--ffn", it.ffn, "Width of SwiGLU, a multiple of 128");
  length("--vocabulary", it.vocabulary, "Width of the logits, a multiple of 16");
  length("--logit-rows", it.logit_rows, "Rows of the logits");
  command
      ->add_option(
          "--parameters", options->parameters,
          "Parameters for AdamW, a multiple of 128 (default: 134217728; on the CPU 16777216)")
      ->check(in_range(int64_t{1}, int64_t{1} << 34));
  add_rounds(*command, it.rounds);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Example:\n  gnomon bench kernels --device cuda --json");
  command->callback([options] {
    options->settle();
    const json::value result = json::parse(bench_kernels_json(options->bench));
    options->json ? fmt::print("{}", pretty_json(result)) : print_kernels(result.as_object());
  });
}

// ---- block ----

void print_block(const json::object& result) {
  Table table({"size", ">sequence", ">batch", ">BF16 ms", ">FP8 ms", ">FP8 over BF16"});
  for (const json::value& cell : result.at("cells").as_array()) {
    const json::object& object = cell.as_object();
    const bool measured = object.contains("fp8_over_bf16");
    const auto text = [&](const char* key, double scale, const char* format) {
      return measured ? fmt::format(fmt::runtime(format), scale * number(cell, key))
                      : std::string("-");
    };
    table.add(
        {object.at("size").as_string().c_str(), fmt::format("{}", object.at("sequence").as_int64()),
         fmt::format("{}", object.at("batch").as_int64()), text("bf16_seconds", 1e3, "{:.3f}"),
         text("fp8_seconds", 1e3, "{:.3f}"),
         measured ? text("fp8_over_bf16", 1, "{:.2f}") : object.at("empty").as_string().c_str()});
  }
  fmt::print("{}", table.text());
  print_machine(result);
}

void add_block(Command& bench) {
  struct Options {
    BenchBlockOptions bench;
    DeviceChoice device;
    std::string picture;
    bool json = false;

    // Where nothing else was asked for, a CPU does a corner of the table.
    void settle(bool sizes, bool sequences, bool batches) {
      bench.device = device.chosen();
      if (bench.device != Device::kCpu) return;
      if (!sizes) bench.sizes = {"125M", "350M"};
      if (!sequences) bench.sequences = {256, 512};
      if (!batches) bench.batches = {1, 2};
    }
  };
  auto options = std::make_shared<Options>();
  Command* command = bench.add_subcommand(
      "block", "One transformer block, FP8 over BF16: GPT-3's widths, sequences and batches");
  BenchBlockOptions& it = options->bench;
  add_bench_device_options(*command, options->device, it.threads);
  command->add_option("--recipe", it.recipe, "Recipe of the FP8 passes")->capture_default_str();
  add_accumulate_option(*command, it.accumulate);
  command->add_option(
      "--sizes", it.sizes,
      "Some of 125M, 350M, 760M, 1.3B, 2.7B, 6.7B, 13B, 175B (default: all; on the CPU "
      "125M and 350M)");
  command->add_option("--sequences", it.sequences,
                      "Tokens of a sequence, multiples of 16 (default: 1024 2048 4096 8192; on the "
                      "CPU 256 512)");
  command->add_option("--batches", it.batches,
                      "Sequences in a pass, ascending (default: 1 2 4 8; on the CPU 1 2)");
  command->add_option("--picture", options->picture, "Write the table as a picture (SVG) here");
  add_rounds(*command, it.rounds);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer("Example:\n  gnomon bench block --device cuda --json --picture block.svg");
  command->callback([options, command] {
    options->settle(command->count("--sizes") > 0, command->count("--sequences") > 0,
                    command->count("--batches") > 0);
    const std::string text = bench_block_json(options->bench);
    if (!options->picture.empty())
      write_file_atomically(options->picture, bench_block_picture(text));
    const json::value result = json::parse(text);
    options->json ? fmt::print("{}", pretty_json(result)) : print_block(result.as_object());
  });
}

}  // namespace

void add_bench_device_commands(Command& bench) {
  add_gemm(bench);
  add_kernels(bench);
  add_block(bench);
}

}  // namespace gnomon::cli
