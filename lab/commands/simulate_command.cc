// `gnomon simulate`: the decision core over runs that exist only as numbers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>

#include "base/errors.h"
#include "base/progress.h"
#include "cli/json_output.h"
#include "controller/decide/gap_noise.h"
#include "lab/commands/commands.h"
#include "lab/commands/simulate_output.h"
#include "lab/planning/run_planning.h"

namespace gnomon::cli {
namespace {

struct SimulateOptions {
  std::vector<std::string> policies;
  simulate::RunModel model;
  simulate::StudyOptions study;
  std::string steps = "20000";
  std::vector<std::string> fault_rates = {"1/100k"};
  std::string fault_size = "0.2..2";
  std::string crash_rate = "0";
  bool json = false;
};

double parse_rate(const std::string& option, const std::string& whole, const std::string& text) {
  RunQuestion question;
  if (text.find("..") != std::string::npos) {
    throw ConfigError("", 0, option, whole, "one rate, as 1/100k or 1e-5");
  }
  parse_hazard(option, text, question);
  return question.hazard;
}

// "1/100k" is of every kind, "bit_flip=1/50k" of one; the later ones count.
void set_fault_rates(SimulateOptions& options) {
  for (const std::string& text : options.fault_rates) {
    const size_t equals = text.find('=');
    const double rate = parse_rate("--fault-rate", text, text.substr(equals + 1));
    if (equals == std::string::npos) {
      options.model.hazards.fill(rate);
      continue;
    }
    const auto kind = simulate::fault_kind_from_name(text.substr(0, equals));
    options.model.hazards[static_cast<size_t>(kind)] = rate;
  }
}

double parse_size(const std::string& whole, const std::string& text) {
  try {
    size_t used = 0;
    const double value = std::stod(text, &used);
    if (used == text.size() && value > 0) return value;
  } catch (const std::logic_error&) {  // no number, or none that fits
  }
  throw ConfigError("", 0, "--fault-size", whole,
                    "per cent of the loss, as 0.5, or a range, as 0.2..2");
}

void set_fault_size(SimulateOptions& options) {
  const std::string& text = options.fault_size;
  const size_t dots = text.find("..");
  options.model.size_low = parse_size(text, text.substr(0, dots));
  options.model.size_high =
      dots == std::string::npos ? options.model.size_low : parse_size(text, text.substr(dots + 2));
  if (options.model.size_high < options.model.size_low)
    throw ConfigError("", 0, "--fault-size", text, "a range whose end is not below its beginning");
}

std::vector<SimulatedPolicy> load_policies(const std::vector<std::string>& files) {
  std::vector<SimulatedPolicy> policies;
  if (files.empty()) policies.push_back({"default", decide::Policy(), {}});
  std::set<std::string> names;
  bool twice = false;
  for (const std::string& file : files) {
    policies.push_back({std::filesystem::path(file).stem(), decide::Policy::load(file), {}});
    twice = !names.insert(policies.back().name).second || twice;
  }
  for (size_t i = 0; twice && i < files.size(); ++i) policies[i].name = files[i];
  return policies;
}

void simulate_policies(SimulateOptions& options, Context& context) {
  options.model.steps = static_cast<int64_t>(parse_count("--steps", options.steps));
  set_fault_rates(options);
  set_fault_size(options);
  options.model.crashes = parse_rate("--crash-rate", options.crash_rate, options.crash_rate);
  Simulation simulation{options.model, options.study, load_policies(options.policies), {}};
  simulate::check_model(simulation.model);
  const auto count = static_cast<int64_t>(simulation.policies.size());
  Progress progress("simulating", options.study.runs * count);
  simulation.options.progress = [&](int64_t done) { progress.update(done); };
  std::vector<decide::Policy> policies;
  for (const SimulatedPolicy& one : simulation.policies) policies.push_back(one.policy);
  const simulate::StudyRuns runs =
      simulate::simulate_runs(simulation.model, policies, simulation.options);
  progress.finish();
  simulation.duration = runs.duration;
  for (size_t i = 0; i < policies.size(); ++i) {
    simulation.policies[i].summary = simulate::summarise(runs.by_policy[i]);
    if (!simulation.policies[i].summary.problems.empty()) context.status = kExitFailure;
  }
  fmt::print("{}", options.json ? pretty_json(to_json(simulation)) : in_words(simulation));
}

void add_run_options(Command& command, SimulateOptions& options) {
  simulate::RunModel& model = options.model;
  command
      .add_option("--policy", options.policies,
                  "Policy files, compared on the same seeds; the default policy without any")
      ->check(existing_file());
  command.add_option("--runs", options.study.runs, "Runs for each policy, 1 to 100000")
      ->capture_default_str();
  command.add_option("--steps", options.steps, "Steps of a run, as 20000, 500k or 1M")
      ->capture_default_str();
  command.add_option("--seed", options.study.seed, "Seed of the first run; the next ones follow")
      ->capture_default_str();
  command
      .add_option("--threads", options.study.threads, "Threads; the result does not depend on it")
      ->capture_default_str();
  command.add_option("--checkpoint-every", model.checkpoint_every, "Steps between checkpoints")
      ->capture_default_str();
  command.add_option("--layers", model.layers, "Layers of the model, 1 to 9, with 7 sites each")
      ->capture_default_str();
  command.add_option("--speedup", model.speedup, "Time of a BF16 step over an FP8 step's")
      ->capture_default_str();
  command.add_flag("--json", options.json, "Print JSON");
}

void add_fault_options(Command& command, SimulateOptions& options) {
  simulate::RunModel& model = options.model;
  command
      .add_option(
          "--fault-rate", options.fault_rates,
          fmt::format("Faults per step, of every kind (1/100k, 0) or of one (KIND=1/50k): {}",
                      fmt::join(simulate::fault_kind_names(), ", ")))
      ->capture_default_str();
  command
      .add_option("--fault-size", options.fault_size,
                  "What 25 steps of an FP8 fault add to the loss, per cent, or a range of it")
      ->capture_default_str();
  command
      .add_option("--lasting-share", model.lasting_share,
                  "Share of FP8 faults that stay; the others last --brief-steps on average")
      ->capture_default_str();
  command.add_option("--brief-steps", model.brief_steps, "See above")->capture_default_str();
  command
      .add_option("--heal-steps", model.heal_steps,
                  "Damage falls by a factor e in so many steps; 0: it never does")
      ->capture_default_str();
  command.add_option("--crash-rate", options.crash_rate, "Crashes of the trainer per step")
      ->capture_default_str();
  command
      .add_option("--person-seconds", model.person_seconds,
                  "Until somebody looks after a run that is held; an FP8 step is a second")
      ->capture_default_str();
}

void add_measurement_options(Command& command, SimulateOptions& options) {
  simulate::RunModel& model = options.model;
  std::vector<std::string> noises;
  for (const decide::NoiseShape& shape : decide::noise_shapes()) noises.emplace_back(shape.name);
  command.add_option("--noise", model.noise, "Shape of D's noise")
      ->check(one_of(noises))
      ->capture_default_str();
  command
      .add_option("--noise-percent", model.noise_percent,
                  "Deviation of D over 25 steps; it grows with the root of a window's steps")
      ->capture_default_str();
  command
      .add_option("--autocorrelation", model.autocorrelation,
                  "Correlation of the noise of neighbouring measured windows, -0.99 to 0.99")
      ->capture_default_str();
  command.add_option("--mean-gap-percent", model.mean_gap_percent, "Mean D of a healthy window")
      ->capture_default_str();
  command
      .add_option("--verifiers", model.verifiers,
                  "Verifiers beside the trainer; 0: it verifies itself while training waits")
      ->capture_default_str();
  command
      .add_option("--verifier-speed", model.verifier_speed, "Steps in the time of a trainer's step")
      ->capture_default_str();
  command
      .add_option("--verifier-dies", model.verifier_dies, "Chance per replay; another comes later")
      ->capture_default_str();
  command
      .add_option("--verifier-lies", model.verifier_lies,
                  "Chance per replay to compute wrongly from then on")
      ->capture_default_str();
}

}  // namespace

void add_simulate_command(Command& app, Context& context) {
  auto options = std::make_shared<SimulateOptions>();
  Command* command = app.add_subcommand(
      "simulate",
      "Plays policies over thousands of runs that exist only as numbers, and says what they cost");
  add_run_options(*command, *options);
  add_fault_options(*command, *options);
  add_measurement_options(*command, *options);
  command->footer(
      "The real decision core watches a run whose faults, noise, verifiers and crashes are drawn "
      "from\n"
      "a seed; what it concludes is held against what was true. docs/simulate.md has the model.\n"
      "Examples:\n"
      "  gnomon simulate --fault-rate 0 --noise t4\n"
      "  gnomon simulate --policy mine.toml --policy examples/policies/fast.toml --runs 500\n"
      "  gnomon simulate --fault-rate 0 --fault-rate numerics=1/20k --fault-size 0.05..0.5\n"
      "  gnomon simulate --verifiers 2 --verifier-dies 0.02 --crash-rate 1/5k --json");
  command->callback([options, &context] { simulate_policies(*options, context); });
}

}  // namespace gnomon::cli
