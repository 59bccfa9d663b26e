// `gnomon`: what an operator does with runs and policies. It links neither engine nor daemon;
// commands that need one are in programs beside it.
#include "base/errors.h"
#include "cli/printing.h"
#include "cli/program.h"

namespace gnomon::cli {
namespace {

const std::vector<Sibling>& siblings() {
  static const std::vector<Sibling> all = {
      {"gnomon-admin",
       {{"ledger", "A ledger's file: backup, restore, check, repair"},
        {"audit", "Refused requests and people's changes, as a chain that shows tampering"},
        {"token", "Tokens: who may speak to gnomond, and as what"},
        {"notify", "Notifications of gnomond"}}},
      {"gnomon-lab",
       {{"plan",
         "Is FP8 worth it for a run to come; and precision plans: which GEMM in which format"},
        {"simulate",
         "Plays policies over thousands of runs that exist only as numbers, and says what they "
         "cost"},
        {"backtest",
         "Decides again from a ledger's events; prints what would have differed, and its cost"},
        {"replay", "Replays a window from a checkpoint, without any daemon"},
        {"inspect", "Statistics of a checkpoint's tensors in one batch, without training"},
        {"checkpoint", "Checkpoints on disk: list and verify"},
        {"formats", "Number formats: every code, and casts to them"},
        {"bench", "Benchmarks; each prints its machine and its build"}}}};
  return all;
}

void add_commands(Command& app, Context& context) {
  add_server_commands(app, context);
  add_watch_command(app, context);
  add_ready_command(app, context);
  add_override_command(app, context);
  add_ledger_commands(app, context);
  add_data_commands(app, context);
  add_statistics_command(app, context);
  add_policy_commands(app, context);
  add_conformance_commands(app, context);
  for (const Sibling& sibling : siblings()) add_sibling(app, sibling);
}

}  // namespace
}  // namespace gnomon::cli

int main(int argc, char** argv) {
  using namespace gnomon::cli;
  try {
    start_sibling(siblings(), argv);
  } catch (const gnomon::Error& error) {
    print_line(stderr, "gnomon: {}\n", error.what());
    return kExitFailure;
  }
  return run_program(
      argc, argv, "Watches and steers FP8 pretraining runs that are checked against a BF16 shadow.",
      add_commands);
}
