// Decides which of several trainers of one run counts. docs/api.md has the protocol.
#pragma once

#include <string>
#include <string_view>

#include "storage/ledger_connection.h"

namespace gnomon {

// Titles of 409s that say what a trainer has to do: it ends.
inline constexpr std::string_view kTrainerReplaced = "Another trainer has taken over";
// It announces the plan, by its registration or a notice, and sends the report again.
inline constexpr std::string_view kUnknownPlan = "Unknown plan";

// Throws Refusal (409) when another process has taken the run over from the one that says that it
// is `incarnation`; one that says nothing is let through.
void check_trainer(Connection& connection, int64_t run, const std::string& incarnation);
// Throws Refusal (409) when an attempt after `attempt` has begun; 0: not said.
void check_newest_attempt(Connection& connection, int64_t run, int64_t attempt);

}  // namespace gnomon
