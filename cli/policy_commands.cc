#include <fmt/format.h>

#include <memory>

#include "cli/commands.h"
#include "cli/policy_explain.h"
#include "controller/decide/policy.h"

namespace gnomon::cli {

void add_policy_commands(Command& app, Context&) {
  Command* policy =
      app.add_subcommand("policy", "Fallback policies: when FP8 is blamed, and what is done");
  policy->require_subcommand(1);

  auto file = std::make_shared<std::string>();
  Command* check = policy->add_subcommand("check", "Says whether a policy file is accepted");
  check->add_option("FILE", *file, "Policy in TOML")->required();
  check->footer("Example:\n  gnomon policy check policy.toml && cp policy.toml /etc/gnomon/");
  check->callback([file] {
    decide::Policy loaded = decide::Policy::load(*file);
    const std::string cadence =
        loaded.window.every > 0
            ? fmt::format("every {}", loaded.window.every)
            : fmt::format("as {}% of the compute pay it", loaded.verification.budget_percent);
    fmt::print("{}: accepted (mode {}, a window of {} steps {})\n", *file,
               decide::mode_name(loaded.mode), loaded.window.steps, cadence);
    for (const std::string& change :
         changed_settings(list_settings(loaded), list_settings(decide::Policy()), false)) {
      fmt::print("  {}\n", change);
    }
  });

  Command* show =
      policy->add_subcommand("show", "Prints the whole policy, defaults filled in, as TOML");
  show->add_option("FILE", *file, "Policy in TOML; without it, the defaults");
  show->footer("Example:\n  gnomon policy show > policy.toml");
  show->callback([file] {
    decide::Policy shown = file->empty() ? decide::Policy() : decide::Policy::load(*file);
    fmt::print("{}", shown.to_toml());
  });

  Command* explain = policy->add_subcommand("explain", "Says in words what a policy does");
  explain->add_option("FILE", *file, "Policy in TOML; without it, the defaults");
  auto steps = std::make_shared<int64_t>(0);
  explain->add_option("--steps", *steps, "The run's length: says which faults it is too short for")
      ->check(positive_number());
  explain->footer("Example:\n  gnomon policy explain examples/policies/cautious.toml");
  explain->callback([file, steps] {
    const decide::Policy policy = file->empty() ? decide::Policy() : decide::Policy::load(*file);
    for (const PolicySection& section : explain_policy(policy, *steps)) {
      fmt::print("{}\n", section.title);
      for (const std::string& sentence : section.sentences) fmt::print("  {}\n", sentence);
    }
  });
}

}  // namespace gnomon::cli
