#include <fmt/format.h>

#include <boost/json/serialize.hpp>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/policy_explain.h"
#include "cli/server.h"
#include "controller/decide/policy.h"

namespace gnomon::cli {
namespace {

// A policy from a file, or that of a run; with neither, the defaults.
struct PolicyOptions {
  std::string file;
  ServerOptions server;
  int64_t steps = 0;
};

std::string target_of(const std::string& run) { return "/v1/runs/" + run + "/policy"; }

decide::Policy policy_of_run(Server& server, const std::string& run) {
  return decide::Policy::parse(server.text(target_of(run)), fmt::format("policy of {}", run));
}

decide::Policy load(const PolicyOptions& options) {
  if (options.server.run.empty())
    return options.file.empty() ? decide::Policy() : decide::Policy::load(options.file);
  Server server(options.server.access);
  return policy_of_run(server, server.resolve_run(options.server.run));
}

void add_source(Command& command, PolicyOptions& options) {
  CommandOption* file =
      command.add_option("FILE", options.file, "Policy in TOML; without it, the defaults");
  command.add_option("--run", options.server.run, "In place of FILE: the policy of this run")
      ->excludes(file);
  add_url_option(command, options.server);
}

void print_changes(const decide::Policy& policy, const decide::Policy& other,
                   std::string_view word) {
  for (const std::string& change :
       changed_settings(list_settings(policy), list_settings(other), word, false)) {
    fmt::print("  {}\n", change);
  }
}

void check_policy(const PolicyOptions& options) {
  const decide::Policy policy = decide::Policy::load(options.file);
  const std::string cadence = policy.window.every > 0
                                  ? fmt::format("one every {} steps", policy.window.every)
                                  : fmt::format("as often as {}% of training's compute pays for",
                                                policy.verification.budget_percent);
  fmt::print("{}: accepted (mode {}, windows of {} steps, {})\n", options.file,
             decide::mode_name(policy.mode), policy.window.steps, cadence);
  print_changes(policy, decide::Policy(), "default");
}

void explain(const PolicyOptions& options) {
  for (const PolicySection& section : explain_policy(load(options), options.steps)) {
    fmt::print("{}\n", section.title);
    for (const std::string& sentence : section.sentences) fmt::print("  {}\n", sentence);
  }
}

void replace(const PolicyOptions& options) {
  const decide::Policy policy = decide::Policy::load(options.file);
  Server server(options.server.access);
  const std::string run = server.resolve_run(options.server.run);
  std::optional<decide::Policy> before;
  try {
    before = policy_of_run(server, run);
  } catch (const ConfigError&) {  // of a version that had other keys: it is what is to be replaced
  }
  const std::string toml = policy.to_toml();
  if (before && toml == before->to_toml()) {
    fmt::print("{}: it has this policy already\n", run);
    return;
  }
  server.put(target_of(run), boost::json::serialize(boost::json::string(toml)));
  fmt::print("{}: the policy is replaced, from the next report of its trainer on\n", run);
  if (before) print_changes(policy, *before, "before");
}

}  // namespace

void add_policy_commands(Command& app, Context&) {
  Command* policy =
      app.add_subcommand("policy", "Fallback policies: when FP8 is blamed, and what is done");
  policy->require_subcommand(1);
  auto options = std::make_shared<PolicyOptions>();

  Command* check = policy->add_subcommand("check", "Says whether a policy file is accepted");
  check->add_option("FILE", options->file, "Policy in TOML")->required();
  check->footer("Example:\n  gnomon policy check policy.toml && cp policy.toml /etc/gnomon/");
  check->callback([options] { check_policy(*options); });

  Command* show =
      policy->add_subcommand("show", "Prints the whole policy, defaults filled in, as TOML");
  add_source(*show, *options);
  show->footer(
      "Examples:\n  gnomon policy show > policy.toml\n"
      "  gnomon policy show --run my-run");
  show->callback([options] { fmt::print("{}", load(*options).to_toml()); });

  Command* explained = policy->add_subcommand("explain", "Says in words what a policy does");
  add_source(*explained, *options);
  explained
      ->add_option("--steps", options->steps,
                   "The run's length: says which faults it is too short for")
      ->check(positive_number());
  explained->footer("Example:\n  gnomon policy explain examples/policies/cautious.toml");
  explained->callback([options] { explain(*options); });

  Command* replaced =
      policy->add_subcommand("replace", "Gives a run another policy while it trains");
  replaced->add_option("RUN", options->server.run, "run-1, a name (its newest job) or name/job")
      ->required();
  replaced->add_option("FILE", options->file, "Policy in TOML")->required();
  add_url_option(*replaced, options->server);
  replaced->footer(
      "What the file leaves out is the default, not what the run had before.\n"
      "Example:\n  gnomon policy show --run my-run > policy.toml\n"
      "  gnomon policy replace my-run policy.toml");
  replaced->callback([options] { replace(*options); });
}

}  // namespace gnomon::cli
