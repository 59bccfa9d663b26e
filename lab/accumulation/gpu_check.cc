// `gnomon-gpu-check`: what can only be checked on a GPU. A program of its own, so that `gnomon`
// needs no CUDA library.
#include <fmt/format.h>
#include <omp.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>

#include "base/command_line.h"
#include "base/errors.h"
#include "base/version.h"
#include "cli/json_output.h"
#include "lab/accumulation/cuda_device.h"
#include "lab/accumulation/report.h"
#include "lab/attention/command.h"

namespace gnomon {
namespace {

constexpr int kExitFailure = 1;
constexpr int kExitBadInput = 2;
constexpr int kExitNoDevice = 3;
constexpr int kExitOtherSums = 4;

struct AccumulationOptions {
  int64_t k_max = 8192;
  ComparisonOptions comparison{1, 32, omp_get_max_threads()};
  int algorithms = 3;
  std::string pretend, pretend_fast;
  bool json = false;
};

std::unique_ptr<ProductDevice> open_device(const AccumulationOptions& options) {
  if (!options.pretend.empty() || !options.pretend_fast.empty()) {
    return std::make_unique<EmulatedDevice>(
        variant_from_text(options.pretend_fast, "--pretend-fast"),
        options.pretend.empty() ? default_variant(false)
                                : variant_from_text(options.pretend, "--pretend"),
        options.comparison.threads);
  }
  const cuda::DeviceInfo info = cuda::device_info();
  if (!info.has_fp8()) {
    throw cuda::NoCudaDevice(fmt::format(
        "no CUDA device with FP8: {} has compute capability {}.{}, FP8 needs 8.9 or more",
        info.name, info.major, info.minor));
  }
  return std::make_unique<CublasLtDevice>(info, options.algorithms);
}

int check_accumulation(const AccumulationOptions& options) {
  const std::unique_ptr<ProductDevice> device = open_device(options);
  auto progress = [](const ProblemSpec& spec, size_t at, size_t count) {
    fmt::print(stderr, "{}/{} {}\n", at + 1, count, spec.name());
  };
  const Comparison found = compare(*device, default_problems(options.k_max), candidate_variants(),
                                   options.comparison, progress);
  if (options.json) {
    boost::json::object object = comparison_to_json(found);
    object["device"] = device->name();
    object["seed"] = options.comparison.seed;
    object["build"] = fmt::format("{} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler);
    fmt::print("{}", cli::pretty_json(object));
  } else {
    fmt::print("{}\n\n{}", device->name(), comparison_in_words(found, 5));
  }
  return found.defaults_hold() ? 0 : kExitOtherSums;
}

void add_accumulation(Command& app, int& status) {
  auto options = std::make_shared<AccumulationOptions>();
  Command* command = app.add_subcommand(
      "accumulation", "How the device adds FP8 products up, beside `accumulate = \"hopper\"`");
  command->add_option("--k-max", options->k_max, "The longest sums, in terms")
      ->check(in_range(int64_t{32}, int64_t{8192}))
      ->capture_default_str();
  command->add_option("--seed", options->comparison.seed, "Seed of the data")
      ->capture_default_str();
  command
      ->add_option("--algorithms", options->algorithms,
                   "Algorithms of the library, for each product")
      ->check(in_range(1, 64))
      ->capture_default_str();
  command
      ->add_option("--sample", options->comparison.sample,
                   "Rows and columns of each product that are compared, at most")
      ->check(in_range(int64_t{2}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--threads", options->comparison.threads, "Threads of the emulation")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  command->add_option(
      "--pretend", options->pretend,
      "No device: an emulation takes its place, like terms=32,bits=13,result=13,promote=128");
  command->add_option("--pretend-fast", options->pretend_fast,
                      "The same for fast accumulation (promote=0 unless said)");
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Exit status: 0 the default emulation explains the device best, 4 another does, 3 no CUDA "
      "device "
      "with FP8, 1 failed, 2 bad input.\nExample:\n  gnomon-gpu-check accumulation --json");
  command->callback([options, &status] { status = check_accumulation(*options); });
}

int fail(int status, const char* what) {
  fmt::print(stderr, "gnomon-gpu-check: {}\n", what);
  return status;
}

int run(int argc, char** argv) {
  Command app("Checks that need a GPU.", "gnomon-gpu-check");
  int status = 0;
  app.require_subcommand(1);
  app.set_version_flag(
      fmt::format("gnomon-gpu-check {} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler));
  add_accumulation(app, status);
  add_attention_check(app, status);
  return app.parse(argc, argv, kExitBadInput).value_or(status);
}

}  // namespace
}  // namespace gnomon

int main(int argc, char** argv) {
  using namespace gnomon;
  try {
    return run(argc, argv);
  } catch (const ConfigError& error) {
    return fail(kExitBadInput, error.what());
  } catch (const cuda::NoCudaDevice& error) {
    return fail(kExitNoDevice, error.what());
  } catch (const std::exception& error) {
    return fail(kExitFailure, error.what());
  }
}
