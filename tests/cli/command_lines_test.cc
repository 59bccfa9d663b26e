// What the program answers to a command line, and its exit status.
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "tests/cli/program.h"

namespace gnomon::cli {
namespace {

using ::testing::HasSubstr;

// "@source/" is the folder of the sources.
struct CommandLine {
  std::string name;
  std::string words;  // separated by single spaces
  int status;
  std::string text;  // in what it says
};

void PrintTo(const CommandLine& line, std::ostream* out) { *out << "gnomon " << line.words; }

std::vector<std::string> split(const std::string& words) {
  std::vector<std::string> arguments;
  std::istringstream in(words);
  for (std::string word; in >> word;) {
    if (word.starts_with("@source/")) word.replace(0, 7, GNOMON_SOURCE);
    arguments.push_back(word);
  }
  return arguments;
}

class CommandLineTest : public ::testing::TestWithParam<CommandLine> {};

TEST_P(CommandLineTest, IsAnswered) {
  const test::EndedProcess ended = run_gnomon(split(GetParam().words));
  EXPECT_EQ(ended.status, GetParam().status) << ended.errors << ended.output;
  EXPECT_THAT(ended.output + ended.errors, HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(
    , CommandLineTest,
    ::testing::Values(
        CommandLine{"VersionIsTold", "--version", 0, "gnomon " GNOMON_VERSION},
        CommandLine{"HelpHasAnExample", "formats cast --help", 0, "Example:"},
        CommandLine{"NoCommandIsBadInput", "", 2, "expected one of runs, status"},
        CommandLine{"AnUnknownCommandIsNamed", "frob", 2, "command = frob"},
        CommandLine{"AnUnknownSubcommandIsNamed", "data frob", 2, "expected one of prepare, info"},
        CommandLine{"APlanNeedsAModel", "plan check absent.toml", 2, "Exactly 1 option"},
        CommandLine{"ARunIsPlanned",
                    "plan --speedup 1.35 --step-seconds 2 --steps 500k --gpus 64 --hazard 1/100k",
                    0, "FP8 is worth it"},
        CommandLine{
            "ABudgetInMoneyIsPlanned",
            "plan --bf16-step-seconds 3 --step-seconds 2 --budget 1Musd --gpu-hour-price 2.5", 0,
            "usd"},
        CommandLine{"ARunIsPlannedForPrograms", "plan --speedup 0.9 --step-seconds 2 --json", 0,
                    "\"worth_it\": false"},
        CommandLine{"APlanForARunNeedsStepTimes", "plan", 2, "--step-seconds: not accepted"},
        CommandLine{"APlanForARunNeedsASpeedup", "plan --step-seconds 2", 2,
                    "--speedup: not accepted"},
        CommandLine{"ThreeStepTimesAreOneTooMany",
                    "plan --speedup 1.3 --step-seconds 2 --bf16-step-seconds 3", 2,
                    "two of --speedup"},
        CommandLine{"MoneyNeedsAPrice", "plan --speedup 1.3 --step-seconds 2 --budget 1Musd", 2,
                    "--gpu-hour-price"},
        CommandLine{"StepsOrABudget", "plan --speedup 1.3 --step-seconds 2 --budget 1M --steps 5",
                    2, "either --steps or --budget"},
        CommandLine{"ASpeedupIsANumber", "plan --speedup fast --step-seconds 2", 2,
                    "--speedup = fast"},
        CommandLine{"ASpeedupIsAbove0", "plan --speedup=-1 --step-seconds 2", 2, "--speedup = -1"},
        CommandLine{"AStepTakesTime", "plan --speedup 1.3 --step-seconds nan", 2,
                    "--step-seconds = nan"},
        CommandLine{"SwitchingTakesNoNegativeTime",
                    "plan --speedup 1.3 --step-seconds 2 --switch-seconds=-3", 2,
                    "--switch-seconds = -3"},
        CommandLine{"AHazardIsAShare", "plan --speedup 1.3 --step-seconds 2 --hazard 2", 2,
                    "--hazard = 2"},
        CommandLine{"OptionsOfARunAreNotForPlanCheck",
                    "plan --speedup 1.3 check absent.toml --layers 2", 2,
                    "--speedup = 1.3: not accepted"},
        CommandLine{"AnUnknownOptionOfPlanIsNamed", "plan --bogus", 2, "--bogus"},
        CommandLine{"AnUnknownPlanCommandIsNamed", "plan frob", 2, "command = frob"},
        CommandLine{"PlansForRunsHaveAnExample", "plan --help", 0, "gnomon plan --speedup 1.35"},
        CommandLine{"AnUnknownFormatIsBadInput", "formats cast --format e9m9 1", 2, "e9m9"},
        CommandLine{"AWordIsNoNumber", "formats cast --format e4m3 one", 2, "VALUE = one"},
        CommandLine{"CastsSaturateByDefault", "formats cast --format e4m3 1e9", 0, "448"},
        CommandLine{"CastsOverflowWhenAsked",
                    "formats cast --format e5m2 --no-saturate --json -inf", 0,
                    "\"value\": \"-Infinity\""},
        CommandLine{"AMissingLedgerIsBadInput", "summary --ledger absent.sqlite", 2,
                    "absent.sqlite"},
        CommandLine{"AMissingLedgerCannotBeChecked", "ledger check --ledger absent.sqlite", 2,
                    "absent.sqlite"},
        CommandLine{"AMissingLedgerHasNoAuditLog", "audit verify --ledger absent.sqlite", 2,
                    "absent.sqlite"},
        CommandLine{"ANotedHeadIsAHash", "audit verify --ledger absent.sqlite --expect 12:beef", 2,
                    "64 hexadecimal digits"},
        CommandLine{"ARepairHasAnExample", "ledger repair --help", 0, "gnomon ledger repair /var"},
        CommandLine{"ABackupHasOneSource", "ledger backup --out copy.sqlite", 2,
                    "either --ledger FILE"},
        CommandLine{"GnomondChoosesTheNameOfItsBackup",
                    "ledger backup --url http://127.0.0.1:1 --out x", 2, "no name beside --url"},
        CommandLine{"BackupsHaveAnExample", "ledger backup --help", 0,
                    "gnomon ledger backup --ledger"},
        CommandLine{"NoControllerIsAFailure", "runs --url http://127.0.0.1:1", 1, "cannot connect"},
        CommandLine{"TheCautiousPolicyIsAccepted",
                    "policy check @source/examples/policies/cautious.toml", 0,
                    "accepted (mode enforce"},
        CommandLine{"TheBalancedPolicyIsAccepted",
                    "policy check @source/examples/policies/balanced.toml", 0,
                    "accepted (mode enforce"},
        CommandLine{"TheFastPolicyIsAccepted", "policy check @source/examples/policies/fast.toml",
                    0, "accepted (mode enforce"},
        CommandLine{"TheDemosPolicyIsAccepted", "policy check @source/examples/demo/policy.toml", 0,
                    "accepted (mode enforce"},
        CommandLine{"APolicyIsExplainedInWords",
                    "policy explain @source/examples/policies/balanced.toml", 0,
                    "change the recipe to"},
        CommandLine{"AShortRunIsToldWhatItIsTooShortFor", "policy explain --steps 5000", 0,
                    "19 times of 20. This run is over before that."},
        CommandLine{"WhatAPolicyChangesIsTold",
                    "policy explain @source/examples/policies/balanced.toml", 0,
                    "ladder.rungs = [\"pin\", \"recipe\", \"bf16\", \"hold\"] (default "
                    "[\"pin\", \"bf16\", \"hold\"]): The first alarm"},
        CommandLine{"AcceptedKeysThatAreNotTheDefaultAreTold",
                    "policy check @source/examples/policies/balanced.toml", 0,
                    "\n  ladder.rungs = "},
        CommandLine{"APolicyIsShownWithItsDefaults", "policy show", 0,
                    "\n[limits]\nactions_max = 8\n"},
        CommandLine{"AMissingPolicyIsBadInput", "policy check absent.toml", 2, "absent.toml"},
        CommandLine{"DetectorsAreCompared",
                    "bench detector --windows 100 --alarms 10 --runs 10 --noise t4 --delay-noise "
                    "gaussian --detector eprocess cusum --json",
                    0, "nanoseconds_per_window"},
        CommandLine{
            "PoliciesAreSimulatedSideBySide",
            "simulate --runs 3 --steps 2k --fault-rate 1/1k --policy "
            "@source/examples/policies/fast.toml --policy @source/examples/policies/cautious.toml",
            0, "fast"},
        CommandLine{"ASimulationIsToldToPrograms",
                    "simulate --runs 2 --steps 2k --verifiers 2 --json", 0,
                    "\"windows_per_second\""},
        CommandLine{"ASimulationSaysWhoPays", "simulate --runs 1 --steps 500 --verifiers 1", 0,
                    "spare_fraction is 0"},
        CommandLine{"SimulationsAreExplained", "simulate --help", 0, "docs/simulate.md"},
        CommandLine{"ASimulatedFaultHasAName", "simulate --fault-rate gremlin=1/10k", 2,
                    "one of numerics, overflow"},
        CommandLine{"AFaultRateIsOneNumber", "simulate --fault-rate 1/1M..1/10k", 2,
                    "one rate, as 1/100k"},
        CommandLine{"AFaultRateIsARate", "simulate --fault-rate often", 2, "--fault-rate"},
        CommandLine{"AFaultRateHasALimit", "simulate --fault-rate numerics=0.5", 2,
                    "from 0 to 0.1"},
        CommandLine{"AFaultSizeIsARange", "simulate --fault-size 2..1", 2, "--fault-size = 2..1"},
        CommandLine{"AnUnknownNoiseIsNamed", "simulate --noise pink", 2, "pink"},
        CommandLine{"AnAutocorrelationIsBelow1", "simulate --autocorrelation 1", 2,
                    "autocorrelation = 1"},
        CommandLine{"ASimulationHasRuns", "simulate --runs 0", 2, "from 1 to 100000"},
        CommandLine{"ASimulatedRunHasAFewLayers", "simulate --layers 40", 2, "from 1 to 9"},
        CommandLine{"AMissingPolicyOfASimulationIsNamed", "simulate --policy absent.toml", 2,
                    "absent.toml"},
        CommandLine{"RecordingOrJudgingIsChosen", "bench detect", 2,
                    "exactly one of --record and --traces"},
        CommandLine{"AbsentTracesAreBadInput", "bench detect --traces absent-folder", 2,
                    "absent-folder"},
        CommandLine{"AnUnknownDetectorIsNamed", "bench detector --detector frob", 2, "frob"}),
    [](const auto& line) { return line.param.name; });

}  // namespace
}  // namespace gnomon::cli
