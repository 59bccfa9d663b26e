// `gnomon conformance`: is a foreign trainer or verifier as the protocol wants it?
#include <fmt/format.h>

#include <memory>

#include "base/errors.h"
#include "base/named_file.h"
#include "cli/commands.h"
#include "cli/conformance/scenarios.h"
#include "cli/server.h"
#include "protocol/client_arguments.h"

namespace gnomon::cli {
namespace {

template <class Scenario>
struct Options {
  Scenario scenario;
  bool json = false;
};

template <class Scenario>
void run(const Options<Scenario>& options, void (*check)(const Scenario&, Checks&),
         Context& context) {
  Checks checks(options.json);
  check(options.scenario, checks);
  if (options.json) fmt::print("{}", checks.json());
  if (checks.any_failed()) context.status = kExitFailure;
  if (!options.json)
    fmt::print("{}\n", checks.any_failed() ? "It does not conform." : "It conforms.");
}

template <class Scenario>
void add_common(Command& command, Options<Scenario>& options) {
  command
      .add_option("URL", options.scenario.access.url,
                  "Address of a gnomond, best of one started for this")
      ->required();
  add_access_options(command, options.scenario.access);
  command
      .add_option("--patience", options.scenario.patience_seconds,
                  "Seconds to wait for each thing that is expected")
      ->check(positive_number())
      ->capture_default_str();
  command.add_flag("--json", options.json, "Print JSON, at the end");
}

void add_trainer(Command& conformance, Context& context) {
  auto options = std::make_shared<Options<TrainerScenario>>();
  Command* command = conformance.add_subcommand(
      "trainer", "Plays operator and verifiers to a run, and looks at what its trainer does");
  add_common(*command, *options);
  command->add_option("--run", options->scenario.run, "The run's name, or name/job")->required();
  command->footer(
      "The run's policy is replaced, and the run is stopped at the end. What the verifiers say is "
      "made up.\n\n"
      "Example:\n"
      "  gnomond --ledger /tmp/l.sqlite &\n"
      "  gnomon conformance trainer http://127.0.0.1:7717 --run mine &\n"
      "  python train.py   # registers at that URL as \"mine\", and has a few hundred steps");
  command->callback([options, &context] { run(*options, check_trainer, context); });
}

void add_verifier(Command& conformance, Context& context) {
  auto options = std::make_shared<Options<VerifierScenario>>();
  auto plan_file = std::make_shared<std::string>();
  VerifierScenario& scenario = options->scenario;
  Command* command = conformance.add_subcommand(
      "verifier", "Plays a trainer with two checkpoints, and looks at what verifiers answer");
  add_common(*command, *options);
  command->add_option("--checkpoint", scenario.start, "URI of a checkpoint")->required();
  command->add_option("--end-checkpoint", scenario.end, "URI of the same run's, some steps later")
      ->required();
  command->add_option("--step", scenario.start_step, "Step of the first checkpoint")
      ->required()
      ->check(not_negative());
  command->add_option("--steps", scenario.steps, "Steps between the two")
      ->required()
      ->check(positive_number());
  command
      ->add_option("--format", scenario.checkpoint_format, "The checkpoints' format, such as torch")
      ->required();
  command->add_option("--framework", scenario.framework, "What wrote them, such as pytorch")
      ->required();
  command->add_option("--plan", *plan_file, "The plan that they were trained under (TOML)")
      ->type_name("FILE");
  command->footer(
      "Example:\n"
      "  gnomon conformance verifier http://127.0.0.1:7717 --checkpoint run/step-100 \\\n"
      "    --end-checkpoint run/step-120 --step 100 --steps 20 --format torch --framework "
      "pytorch &\n"
      "  gnomon-verify mine:replay --controller http://127.0.0.1:7717");
  command->callback([options, plan_file, &context] {
    if (!plan_file->empty()) options->scenario.plan = read_named_file_or_pipe(*plan_file);
    run(*options, check_verifier, context);
  });
}

}  // namespace

void add_conformance_commands(Command& app, Context& context) {
  Command* command =
      app.add_subcommand("conformance", "Tests another trainer or verifier against the protocol");
  command->require_subcommand(1);
  add_trainer(*command, context);
  add_verifier(*command, context);
}

}  // namespace gnomon::cli
