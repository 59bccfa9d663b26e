// The subcommands of `gnomon-lab`, one file for each subject (cli/commands.h has the operator's).
#pragma once

#include "cli/commands.h"

namespace gnomon::cli {

void add_replay_command(Command& app, Context& context);   // replay
void add_inspect_command(Command& app, Context& context);  // inspect
void add_plan_commands(Command& app, Context& context);    // plan, plan check
void add_run_planning_options(Command& plan);              // plan
// What stands before a subcommand of `plan` would be ignored: throws ConfigError.
void refuse_options_of_a_run(const Command& plan);
void add_checkpoint_commands(Command& app,
                             Context& context);             // checkpoint verify, checkpoint list
void add_checkpoint_model_commands(Command& checkpoint);    // checkpoint show, checkpoint export
void add_formats_commands(Command& app, Context& context);  // formats table, formats cast
void add_bench_commands(Command& app, Context& context);    // bench step
void add_bench_device_commands(Command& bench);             // bench gemm, kernels, block
void add_bench_statistics_command(Command& bench);          // bench statistics
void add_bench_controller_command(Command& bench);          // bench controller
void add_bench_detect_command(Command& bench);              // bench detect
void add_bench_detector_command(Command& bench);            // bench detector
void add_backtest_command(Command& app, Context& context);  // backtest
void add_simulate_command(Command& app, Context& context);  // simulate

}  // namespace gnomon::cli
