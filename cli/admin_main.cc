// `gnomon-admin`, which `gnomon` starts: the daemon's ledger, audit log, tokens and notifications.
#include "cli/program.h"

int main(int argc, char** argv) {
  using namespace gnomon::cli;
  return run_program(argc, argv, "Looks after gnomond: its ledger, audit log, tokens, receivers.",
                     [](gnomon::Command& app, Context& context) {
                       add_ledger_file_commands(app, context);
                       add_audit_commands(app, context);
                       add_token_commands(app, context);
                       add_notify_commands(app, context);
                     });
}
