#pragma once

#include "cli/commands.h"

namespace gnomon::cli {

void add_ledger_state_commands(Command& ledger, Context& context);  // ledger check, ledger repair

}  // namespace gnomon::cli
