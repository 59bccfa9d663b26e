// The subcommands of `gnomon`, one file for each subject. A command runs in its callback: it
// throws Error for what the user can mend, and sets Context::status for an exit status of its own.
#pragma once

#include <string>
#include <vector>

#include "base/command_line.h"

namespace gnomon::cli {

inline constexpr int kExitFailure = 1;
inline constexpr int kExitBadInput = 2;

struct Context {
  int status = 0;
};

void add_server_commands(Command& app,
                         Context& context);   // runs, status, windows, decisions, directives,
                                              // notices
void add_runs_delete_command(Command& runs);  // runs delete
void add_runs_end_command(Command& runs);     // runs end
void add_override_command(Command& app, Context& context);      // override
void add_watch_command(Command& app, Context& context);         // watch
void add_ready_command(Command& app, Context& context);         // ready
void add_notify_commands(Command& app, Context& context);       // notify test
void add_data_commands(Command& app, Context& context);         // data prepare, data info
void add_statistics_command(Command& app, Context& context);    // statistics
void add_policy_commands(Command& app, Context& context);       // policy check, policy show
void add_conformance_commands(Command& app, Context& context);  // conformance trainer, verifier
void add_ledger_commands(Command& app, Context& context);       // summary, report
void add_ledger_file_commands(Command& app, Context& context);  // ledger backup, restore, check
void add_audit_commands(Command& app, Context& context);        // audit verify, audit list
void add_token_commands(Command& app, Context& context);        // token create, list, revoke

}  // namespace gnomon::cli
