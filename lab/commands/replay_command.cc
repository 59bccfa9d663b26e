#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "base/errors.h"
#include "base/named_file.h"
#include "base/progress.h"
#include "cli/json_output.h"
#include "cli/paths.h"
#include "cli/table.h"
#include "controller/decide/attribution_search.h"
#include "lab/commands/commands.h"
#include "lab/commands/replay_device.h"
#include "protocol/json.h"
#include "protocol/json_text.h"
#include "storage/checkpoint_store.h"
#include "trainer/replay.h"

namespace gnomon::cli {
namespace {

constexpr const char* kScoresArm = "scores";

struct ReplayOptions {
  ReplayRequest request;
  std::string checkpoint;
  std::string end_checkpoint;
  std::string plan_file;
  ReplayDevice on;
  bool json = false;
};

void check_arm(const ReplayOptions& options) {
  const std::string& arm = options.request.arm;
  if (std::ranges::find(kArms, arm) == kArms.end()) {
    throw ConfigError("", 0, "--arm", arm, fmt::format("{}", fmt::join(kArms, ", ")));
  }
  if (arm == kScoresArm) return;
  if (options.request.steps == 0) {
    throw ConfigError("", 0, "--steps", "0", "1 or more; only --arm scores needs none");
  }
  if ((arm == "plan") == options.plan_file.empty()) {
    throw ConfigError("", 0, "--plan", options.plan_file,
                      arm == "plan" ? "a plan file, because of --arm plan"
                                    : "no plan file, because --arm is neither plan nor scores");
  }
}

// A run's end point is only comparable with the replay's when both are the same step.
void check_end(const ReplayOptions& options) {
  if (options.end_checkpoint.empty()) return;
  const int64_t expected = verify_checkpoint(options.checkpoint).step + options.request.steps;
  const int64_t step = verify_checkpoint(options.end_checkpoint).step;
  if (step != expected) {
    throw ConfigError("", 0, "--end-checkpoint", options.end_checkpoint,
                      fmt::format("the run's checkpoint at step {}, where the replay ends (this "
                                  "one is at step {})",
                                  expected, step));
  }
}

// The order in which attribution suspects them.
void sort_by_suspicion(std::vector<SiteScoreRow>& scores) {
  std::vector<double> phi, psi;
  for (const SiteScoreRow& row : scores) {
    phi.push_back(row.phi);
    psi.push_back(row.psi);
  }
  std::vector<SiteScoreRow> sorted;
  for (const size_t place : decide::order_of_suspicion(phi, psi)) {
    sorted.push_back(std::move(scores[place]));
  }
  scores = std::move(sorted);
}

void print_scores(const ReplayResult& result) {
  if (result.scores.empty()) {
    fmt::print("no site of the plan runs in FP8\n");
    return;
  }
  Table table({">", "site", ">phi (nats)", ">psi (nats)", ">SQNR (dB)"});
  double phi = 0, psi = 0;
  for (const SiteScoreRow& row : result.scores) {
    phi += row.phi;
    psi += row.psi;
    table.add({std::to_string(&row - result.scores.data() + 1), row.site,
               fmt::format("{:.3e}", row.phi), fmt::format("{:.3e}", row.psi),
               fmt::format("{:.1f}", row.sqnr_db)});
  }
  fmt::print(
      "{}sum of phi {:.3e} nats per token (the offset), of psi {:.3e} (per update); {:.1f} s\n",
      table.text(), phi, psi, result.eval_seconds);
}

void print_result(const ReplayResult& result) {
  Table table({">step", ">loss", ">grad norm", "weights"});
  for (const ReplayStep& step : result.steps) {
    table.add({std::to_string(step.step), fmt::format("{:.6f}", step.loss),
               step.grad_norm ? fmt::format("{:.4f}", *step.grad_norm) : "", step.weights_hash});
  }
  fmt::print("{}", table.text());
  auto held_out = [](const char* what, const std::optional<double>& loss) {
    if (loss) fmt::print("{}: {:.6f} nats per token\n", what, *loss);
  };
  held_out("held-out loss at the start, BF16", result.start_loss_bf16);
  held_out("held-out loss at the start, the run's plan", result.start_loss_plan);
  held_out("held-out loss at the start, the run's plan without the FP8 kernel",
           result.start_loss_fakequant);
  held_out("held-out loss at the run's end, BF16", result.run_end_loss_bf16);
  held_out("held-out loss at the replay's end, BF16", result.replay_end_loss_bf16);
  fmt::print("{:.1f} s in steps, {:.1f} s in loading and evaluations\n", result.replay_seconds,
             result.eval_seconds);
}

void replay(ReplayOptions& options) {
  check_arm(options);
  require_checkpoint("--checkpoint", options.checkpoint);
  if (!options.end_checkpoint.empty()) {
    require_checkpoint("--end-checkpoint", options.end_checkpoint);
  }
  check_end(options);
  ReplayRequest& request = options.request;
  if (!options.end_checkpoint.empty()) request.evaluate_endpoints = true;
  request.checkpoint = options.checkpoint;
  request.end_checkpoint = options.end_checkpoint;
  if (!options.plan_file.empty()) {
    PrecisionPlan::load(options.plan_file);  // a bad plan is refused with its file's name
    request.plan_toml = read_named_file_or_pipe(options.plan_file);
  }
  Progress progress("replay " + request.arm, request.steps);
  Replayer replayer(options.on);
  ReplayResult result = replayer.run(request, [&](int64_t done) {
    progress.update(done);
    return true;
  });
  progress.finish();
  sort_by_suspicion(result.scores);
  if (options.json) {
    fmt::print("{}", pretty_json(parse_json_exactly(to_json(result))));
  } else if (request.arm == kScoresArm) {
    print_scores(result);
  } else {
    print_result(result);
  }
}

}  // namespace

void add_replay_command(Command& app, Context&) {
  auto options = std::make_shared<ReplayOptions>();
  Command* command =
      app.add_subcommand("replay", "Replays a window from a checkpoint, without any daemon");
  command->add_option("--checkpoint", options->checkpoint, "Checkpoint directory to start from")
      ->required();
  command
      ->add_option(
          "--steps", options->request.steps,
          "Steps to replay (of --arm scores: the step after the checkpoint whose batch and faults "
          "it takes; 1 if not given)")
      ->check(in_range(int64_t{1}, int64_t{1000000}));
  command
      ->add_option(
          "--arm", options->request.arm,
          "bf16 (the shadow), same (the plan of the checkpoint), fakequant (its values, "
          "no FP8 kernel), bf16-perturbed (other orders of summation), plan, or scores (no "
          "steps: what each site's FP8 costs)")
      ->capture_default_str();
  command->add_option("--plan", options->plan_file,
                      "Plan file of --arm plan; of --arm scores, if not the checkpoint's");
  command->add_option(
      "--end-checkpoint", options->end_checkpoint,
      "The run's own checkpoint at the end, to evaluate beside the replay's (as with --evaluate)");
  command
      ->add_option(
          "--perturb", options->request.perturb,
          "Move the start's weights a little, by this seed: replays with several show what "
          "chance does (0: not)")
      ->check(in_range(int64_t{0}, std::numeric_limits<int64_t>::max()));
  command
      ->add_option("--perturb-scale", options->request.perturb_scale,
                   "Relative size of --perturb's moves (default: 2^-9)")
      ->check(in_range(0.0, 1.0));
  command->add_flag("--evaluate", options->request.evaluate_endpoints,
                    "Also measure the held-out losses at start and end");
  add_replay_device_options(*command, options->on);
  command->add_flag("--json", options->json, "Print JSON");
  command->footer(
      "Example:\n  gnomon replay --checkpoint runs/demo/checkpoints/attempt-0001/step-00000120 "
      "--steps 20 --evaluate");
  command->callback([options] { replay(*options); });
}

}  // namespace gnomon::cli
