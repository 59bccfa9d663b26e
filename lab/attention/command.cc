#include "lab/attention/command.h"

#include <fmt/format.h>
#include <omp.h>

#include <memory>
#include <vector>

#include "base/version.h"
#include "cli/json_output.h"
#include "kernels/cuda/cuda_machine.h"
#include "lab/attention/check.h"

namespace gnomon {
namespace {

constexpr int kExitFar = 4;

struct AttentionOptions {
  AttentionCheckOptions check{.threads = omp_get_max_threads()};
  int64_t tokens_max = 8192;
  bool json = false;
};

int run(const AttentionOptions& options) {
  const auto own = cuda::make_cuda_machine({}, cuda::AttentionChoice::kOwn);
  const auto cudnn = cuda::make_cuda_machine({}, cuda::AttentionChoice::kCudnn);
  std::vector<AttentionCandidate> candidates;
  for (const auto& machine : {own.get(), cudnn.get()}) {
    candidates.push_back({.name = machine->attention().name(),
                          .attention = &machine->attention(),
                          .memory = &machine->memory(),
                          .stream = machine->stream()});
  }
  std::vector<AttentionCase> cases;
  for (const AttentionCase& one : default_attention_cases()) {
    if (one.tokens <= options.tokens_max) cases.push_back(one);
  }
  const AttentionCheck check = check_attention(
      candidates, cases, options.check, [](const AttentionCase& one, size_t at, size_t count) {
        fmt::print(stderr, "{}/{} {}\n", at + 1, count, one.name());
      });
  if (options.json) {
    boost::json::object object = attention_check_to_json(check);
    object["device"] = cudnn->device();
    object["libraries"] = cudnn->libraries();
    object["build"] = fmt::format("{} ({}, {}, {})", kVersion, kRevision, kBuildType, kCompiler);
    fmt::print("{}", cli::pretty_json(object));
  } else {
    fmt::print("{}, {}\n\n{}", cudnn->device(), cudnn->libraries(),
               attention_check_in_words(check));
  }
  return check.holds() ? 0 : kExitFar;
}

}  // namespace

void add_attention_check(Command& app, int& status) {
  auto options = std::make_shared<AttentionOptions>();
  Command* command =
      app.add_subcommand("attention", "cuDNN's attention and our own beside FP64, and their speed");
  command->add_option("--tokens-max", options->tokens_max, "Longer sequences are left out")
      ->check(in_range(int64_t{64}, int64_t{8192}))
      ->capture_default_str();
  command->add_option("--seed", options->check.seed, "Seed of the data")->capture_default_str();
  command->add_option("--repeats", options->check.repeats, "Repeats of what is timed")
      ->check(in_range(1, 1000))
      ->capture_default_str();
  command->add_option("--threads", options->check.threads, "Threads of the FP64 reference")
      ->check(in_range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--difference-max", options->check.difference_most,
                   "1 - 2<x,y>/(|x|^2 + |y|^2) that is not yet a failure")
      ->check(in_range(0.0, 1.0))
      ->capture_default_str();
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Exit status: 0 all near FP64 and the same bits when made again, 4 not so, 3 no CUDA device, "
      "1 failed (no cuDNN, say), 2 bad input.\nExample:\n  gnomon-gpu-check attention --json");
  command->callback([options, &status] { status = run(*options); });
}

}  // namespace gnomon
