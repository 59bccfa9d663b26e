// What requests are held against before anything of them is recorded.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "controller/supervisor/cached_run.h"
#include "protocol/records.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_runs.h"

namespace gnomon {

// Titles of 409s that say what a trainer has to do: it ends.
inline constexpr std::string_view kTrainerReplaced = "Another trainer has taken over";
// It announces the plan, by its registration or a notice, and sends the report again.
inline constexpr std::string_view kUnknownPlan = "Unknown plan";

// Throws HttpError (400) when who asks, or why, is blank.
void check_asker(const std::string& owner, const std::string& reason);
// Throws HttpError (400) for a step beyond all that this run can have: many times the steps that
// its trainer said it would take, which is more than any schedule is prolonged by. `member` names
// it.
void require_step_of(const RunRegistration& run, int64_t step, std::string_view member,
                     int64_t least);
// Throws HttpError (409) when the run never began it.
AttemptRow known_attempt(Connection& connection, int64_t run, int64_t attempt);
// Throws HttpError (409, kUnknownPlan) for a plan that the run has never had.
void check_plan(Connection& connection, CachedRun& run, int64_t plan_version);

// The next two decide which of several trainers of one run counts; docs/api.md has the protocol.
//
// Throws HttpError (409) when another process has taken the run over from the one that says that it
// is `incarnation`; one that says nothing is let through.
void check_trainer(Connection& connection, int64_t run, const std::string& incarnation);
// Throws HttpError (409) when an attempt after `attempt` has begun; 0: not said.
void check_newest_attempt(Connection& connection, int64_t run, int64_t attempt);

}  // namespace gnomon
