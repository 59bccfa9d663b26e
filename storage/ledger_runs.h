// Rows of runs and what trainers report about them: attempts, steps, checkpoints, plans, injected
// faults. Plain functions on a connection; those that write must be called inside a ledger write.
// All throw SQLite::Exception when SQLite refuses, which the ledger turns into a LedgerError.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "protocol/records.h"
#include "storage/rows.h"

namespace gnomon::ledger {

std::optional<int64_t> find_run(Connection& connection, const std::string& name,
                                const std::string& job_id);
std::optional<RunRow> load_run(Connection& connection, int64_t run);
std::vector<int64_t> run_ids(Connection& connection);
// Ignores `id` and gives the next one, which no run ever had: the audit log still knows the runs
// that were deleted.
int64_t insert_run(Connection& connection, const RunRow& row);
void set_registration(Connection& connection, int64_t run, const std::string& registration);
void set_policy(Connection& connection, int64_t run, const std::string& policy);
// `state` is the message's outcome.
void finish_run(Connection& connection, int64_t run, const RunFinished& finished, double now);
// An ended run goes on: live again, its end forgotten.
void revive_run(Connection& connection, int64_t run);
// Once for each different fault.
void insert_fault(Connection& connection, int64_t run, const InjectedFault& fault);

std::optional<AttemptRow> find_attempt(Connection& connection, int64_t run, int64_t attempt);
int64_t newest_attempt(Connection& connection, int64_t run);  // 0 = none

std::optional<StepRow> find_step(Connection& connection, int64_t run, int64_t attempt,
                                 int64_t step);
// False, and nothing changes, when that step is on record.
bool insert_step(Connection& connection, const StepRow& step);
// Attempt and step of the last one, by both.
std::optional<std::pair<int64_t, int64_t>> newest_step(Connection& connection, int64_t run);
// Reports that are events above `seq` by themselves, in that order.
std::vector<StepRow> steps_after(Connection& connection, int64_t run, int64_t seq);
// All of them, one at a time: a long run has millions.
void each_step_event(Connection& connection, int64_t run,
                     const std::function<void(const StepRow&)>& each);
// Sums over the steps of a run that took at most `seconds_max` and more than the next lower bound.
struct StepTotalsRow {
  double seconds_max = 0;  // infinity for the rest
  int64_t steps = 0;
  int64_t tokens = 0;
  double seconds = 0;
};
// Adds to what is there.
void add_step_totals(Connection& connection, int64_t run, const StepTotalsRow& row);
std::vector<StepTotalsRow> step_totals(Connection& connection, int64_t run);
// Steps from..to, both included, of one attempt in order.
std::vector<StepRow> steps_between(Connection& connection, int64_t run, int64_t attempt,
                                   int64_t from, int64_t to);

std::optional<CheckpointRow> find_checkpoint(Connection& connection, int64_t run, int64_t attempt,
                                             int64_t step);
void mark_verified(Connection& connection, int64_t run, int64_t attempt, int64_t step, double now);
// Exactly the checkpoints with these URIs are protected afterwards.
void protect_checkpoints(Connection& connection, int64_t run, const std::vector<std::string>& uris);
std::vector<std::string> protected_checkpoints(Connection& connection, int64_t run);

// Keeps the first text of a version.
void insert_plan(Connection& connection, int64_t run, int64_t version, const std::string& toml,
                 double now);
std::optional<std::string> find_plan(Connection& connection, int64_t run, int64_t version);

}  // namespace gnomon::ledger
