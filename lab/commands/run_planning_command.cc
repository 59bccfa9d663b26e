// `gnomon plan --speedup ...`: is FP8 worth it for a run that does not exist yet?
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <tuple>

#include "base/errors.h"
#include "cli/json_output.h"
#include "controller/decide/policy.h"
#include "lab/commands/commands.h"
#include "lab/planning/run_planning.h"

namespace gnomon::cli {
namespace {

struct PlanningOptions {
  RunQuestion question;
  std::optional<double> speedup, step_seconds, bf16_step_seconds, price;
  double switch_seconds = 30;
  double restart_seconds = 300;
  std::string steps, budget;
  std::string hazard = "1/20k";
  bool json = false;
};

void require_number(const char* option, double value, double least, double most) {
  if (value >= least && value <= most) return;
  throw ConfigError("", 0, option, fmt::format("{}", value),
                    fmt::format("a number from {:g} to {:g}", least, most));
}

// The speed-up and the time of an FP8 step, of which two numbers out of three are enough.
void set_step_times(const PlanningOptions& options, RunQuestion& question) {
  const auto& [speedup, fp8, bf16] =
      std::tie(options.speedup, options.step_seconds, options.bf16_step_seconds);
  if (speedup) require_number("--speedup", *speedup, 0.1, 50);
  if (fp8) require_number("--step-seconds", *fp8, 1e-6, 1e6);
  if (bf16) require_number("--bf16-step-seconds", *bf16, 1e-6, 1e6);
  if (!fp8 && !(bf16 && speedup)) {
    throw ConfigError("", 0, "--step-seconds", "",
                      "the seconds of an FP8 step (or of a BF16 step: --bf16-step-seconds)");
  }
  if (!speedup && !bf16) {
    throw ConfigError("", 0, "--speedup", "",
                      "the time of a BF16 step over that of an FP8 step, as 1.35");
  }
  if (speedup && fp8 && bf16) {
    throw ConfigError("", 0, "--bf16-step-seconds", fmt::format("{}", *bf16),
                      "two of --speedup, --step-seconds and --bf16-step-seconds");
  }
  question.model.speedup = speedup ? *speedup : *bf16 / *fp8;
  question.step_seconds = fp8 ? *fp8 : *bf16 / *speedup;
}

void set_size(const PlanningOptions& options, RunQuestion& question) {
  if (!options.steps.empty() && !options.budget.empty()) {
    throw ConfigError("", 0, "--budget", options.budget, "either --steps or --budget");
  }
  if (options.price) require_number("--gpu-hour-price", *options.price, 1e-6, 1e6);
  question.gpu_hour_price = options.price;
  if (!options.steps.empty()) question.steps = parse_count("--steps", options.steps);
  if (options.budget.empty()) return;
  const Budget budget = parse_budget("--budget", options.budget);
  question.currency = budget.currency;
  question.budget_gpu_hours = budget.amount;
  if (budget.currency.empty()) return;
  if (!question.gpu_hour_price) {
    throw ConfigError("", 0, "--budget", options.budget,
                      "--gpu-hour-price beside a budget in money");
  }
  question.budget_gpu_hours = budget.amount / *question.gpu_hour_price;
}

void plan(const PlanningOptions& options) {
  RunQuestion question = options.question;
  set_step_times(options, question);
  set_size(options, question);
  parse_hazard("--hazard", options.hazard, question);
  require_number("--switch-seconds", options.switch_seconds, 0, 1e6);
  require_number("--restart-seconds", options.restart_seconds, 0, 1e6);
  question.model.switch_steps = options.switch_seconds / question.step_seconds;
  question.model.restart_steps = options.restart_seconds / question.step_seconds;
  const RunPlan answer = plan_run(question);
  if (options.json) {
    fmt::print("{}", pretty_json(to_json(question, answer)));
  } else {
    fmt::print("{}", in_words(question, answer));
  }
}

void add_run_options(Command& plan, PlanningOptions& options) {
  const std::string run = "The run";
  plan.add_option("--speedup", options.speedup, "Time of a BF16 step over that of an FP8 step")
      ->group(run);
  plan.add_option("--step-seconds", options.step_seconds, "Seconds of an FP8 step")->group(run);
  plan.add_option("--bf16-step-seconds", options.bf16_step_seconds,
                  "Seconds of a BF16 step, in place of one of the two above")
      ->group(run);
  plan.add_option("--steps", options.steps, "Steps of the whole run: 500k")->group(run);
  plan.add_option("--budget", options.budget,
                  "In place of --steps: GPU-hours (20000, 20kh) or money (1.5Musd)")
      ->group(run);
  plan.add_option("--gpu-hour-price", options.price, "Price of a GPU-hour")->group(run);
  plan.add_option("--gpus", options.question.gpus, "GPUs that train")
      ->capture_default_str()
      ->group(run);
  plan.add_option("--spare-gpus", options.question.spare_gpus, "More GPUs that could verify")
      ->capture_default_str()
      ->group(run);
  plan.add_option("--spare-price", options.question.model.spare_price,
                  "Their price over a training GPU's; 0: they are there anyway")
      ->capture_default_str()
      ->group(run);
  plan.add_option("--loss-gap", options.question.loss_gap_percent,
                  "FP8's loss at the end over BF16's, in per cent, paid for in compute")
      ->capture_default_str()
      ->group(run);
  plan.add_option("--loss-exponent", options.question.loss_exponent,
                  "x in: loss falls as compute^-x")
      ->capture_default_str()
      ->group(run);
}

void add_verification_options(Command& plan, PlanningOptions& options) {
  decide::RunModel& model = options.question.model;
  const std::string group = "Verification and faults";
  plan.add_option("--hazard", options.hazard,
                  "Faults of FP8 per step, that would have to be rolled back: 1/100k, or a range "
                  "1/1M..1/10k")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--window", model.window_steps, "Steps of a window")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--switch-seconds", options.switch_seconds,
                  "Snapshot, reload and switch of one verification")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--budget-percent", options.question.budget_percent,
                  "verification.budget_percent of a policy: what it promises")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--detector-delay", model.delay_windows,
                  "Whole windows with the fault in them until the alarm")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--hold-steps", model.hold_steps, "Steps in BF16 after a fault")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--restart-seconds", options.restart_seconds,
                  "Rollback, triage and attribution of a fault")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--false-alarm-windows", model.windows_between_false_alarms,
                  "Windows between false alarms")
      ->capture_default_str()
      ->group(group);
  plan.add_option("--checkpoint-every", options.question.checkpoint_every,
                  "Checkpoint interval in steps: windows begin at its multiples")
      ->capture_default_str()
      ->group(group);
}

}  // namespace

void refuse_options_of_a_run(const Command& plan_command) {
  for (const CommandOption& option : plan_command.options()) {
    if (option.results().empty()) continue;
    throw ConfigError("", 0, option.name(), option.results().front(),
                      "no option of a run before " + plan_command.chosen_subcommand());
  }
}

void add_run_planning_options(Command& plan_command) {
  auto options = std::make_shared<PlanningOptions>();
  options->question.model.window_steps = static_cast<double>(decide::Policy().window.steps);
  add_run_options(plan_command, *options);
  add_verification_options(plan_command, *options);
  plan_command.add_flag("--json", options->json, "Print JSON");
  plan_command.footer(
      "Without a subcommand: is FP8 worth it for a run that does not exist yet, and how should it "
      "be verified?\n"
      "Examples:\n"
      "  gnomon plan --speedup 1.35 --step-seconds 2 --steps 500k --gpus 64 --spare-gpus 4\n"
      "  gnomon plan --speedup 1.35 --step-seconds 2 --gpus 64 --budget 1.5Musd "
      "--gpu-hour-price 2.5\n"
      "  gnomon plan --bf16-step-seconds 3 --step-seconds 2.4 --hazard 1/1M..1/10k --json\n"
      "  gnomon plan check pinned.toml --layers 8");
  plan_command.callback([options, &plan_command] {
    if (plan_command.chosen_subcommand().empty()) plan(*options);
  });
}

}  // namespace gnomon::cli
