// `gnomon-lab`, which `gnomon` starts: what computes, simulates and measures.
#include "base/sleeping_threads.h"
#include "cli/program.h"
#include "lab/commands/commands.h"

int main(int argc, char** argv) {
  using namespace gnomon::cli;
  gnomon::make_waiting_threads_sleep(argv);
  return run_program(argc, argv, "Replays, inspects, simulates and measures.",
                     [](gnomon::Command& app, Context& context) {
                       add_plan_commands(app, context);
                       add_simulate_command(app, context);
                       add_backtest_command(app, context);
                       add_replay_command(app, context);
                       add_inspect_command(app, context);
                       add_checkpoint_commands(app, context);
                       add_formats_commands(app, context);
                       add_bench_commands(app, context);
                     });
}
