// The subcommands of `gnomon-lab`, one file for each subject (cli/commands.h has the operator's).
#pragma once

#include "cli/commands.h"

namespace gnomon::cli {

void add_replay_command(CLI::App& app, Context& context);   // replay
void add_inspect_command(CLI::App& app, Context& context);  // inspect
void add_plan_commands(CLI::App& app, Context& context);    // plan, plan check
void add_run_planning_options(CLI::App& plan);              // plan
// What stands before a subcommand of `plan` would be ignored: throws ConfigError.
void refuse_options_of_a_run(const CLI::App& plan);
void add_checkpoint_commands(CLI::App& app,
                             Context& context);              // checkpoint verify, checkpoint list
void add_checkpoint_model_commands(CLI::App& checkpoint);    // checkpoint show, checkpoint export
void add_formats_commands(CLI::App& app, Context& context);  // formats table, formats cast
void add_bench_commands(CLI::App& app, Context& context);    // bench step, bench cast
void add_bench_device_commands(CLI::App& bench);             // bench gemm, kernels, block
void add_bench_cast_command(CLI::App& bench);                // bench cast
void add_bench_statistics_command(CLI::App& bench);          // bench statistics
void add_bench_controller_command(CLI::App& bench);          // bench controller
void add_bench_detect_command(CLI::App& bench);              // bench detect
void add_bench_detector_command(CLI::App& bench);            // bench detector
void add_backtest_command(CLI::App& app, Context& context);  // backtest
void add_simulate_command(CLI::App& app, Context& context);  // simulate

}  // namespace gnomon::cli
