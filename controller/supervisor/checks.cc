#include "controller/supervisor/checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "controller/auth/http_error.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_trainers.h"

namespace gnomon {
namespace {

// A run may be prolonged beyond the steps that its trainer said it would take, by so many times.
constexpr int64_t kProlongedMax = 10;
constexpr int64_t kAlwaysPossible = 1'000'000;  // steps

void require_text(const char* member, const std::string& text) {
  require(text.find_first_not_of(" \t\r\n") != std::string::npos,
          fmt::format("{} is \"{}\"", member, text), "some words: who asks, and why, is on record");
}

}  // namespace

void check_asker(const std::string& owner, const std::string& reason) {
  require_text("owner", owner);
  require_text("reason", reason);
}

void require_step_of(const RunRegistration& run, int64_t step, std::string_view member,
                     int64_t least) {
  require_step(step, member, least);
  const int64_t most = std::max(kProlongedMax * run.total_steps, kAlwaysPossible);
  if (run.total_steps == 0 || step <= most) return;
  throw value_refused(
      fmt::format("{} is {}", member, step),
      fmt::format("at most {} in a run of {} total_steps; a run that is prolonged registers again",
                  most, run.total_steps));
}

AttemptRow known_attempt(Connection& connection, int64_t run, int64_t attempt) {
  if (std::optional<AttemptRow> known = ledger::find_attempt(connection, run, attempt)) {
    return *std::move(known);
  }
  const int64_t newest = ledger::newest_attempt(connection, run);
  throw HttpError(
      409, "Unknown attempt", fmt::format("attempt {} was never started", attempt),
      newest == 0
          ? "an attempt started with POST attempts (this run has none yet)"
          : fmt::format("an attempt started with POST attempts (the newest is {})", newest));
}

void check_plan(Connection& connection, CachedRun& run, int64_t plan_version) {
  if (plan_version == 0 || run.known_plans.contains(plan_version)) return;
  const int64_t newest =
      std::max(run.registration.newest_plan_version, run.state.next_plan_version - 1);
  const bool issued = plan_version > 0 && plan_version <= newest;
  if (!issued && !ledger::find_plan(connection, run.id, plan_version)) {
    throw HttpError(
        409, std::string(kUnknownPlan), fmt::format("plan_version is {}", plan_version),
        fmt::format("0 to {}, or that of a plan of the notice plan_without_controller; a "
                    "trainer that knows newer ones says so in newest_plan_version when it "
                    "registers",
                    newest));
  }
  run.known_plans.insert(plan_version);
}

void check_trainer(Connection& connection, int64_t run, const std::string& incarnation) {
  if (incarnation.empty()) return;
  const auto trainer = ledger::find_trainer(connection, run);
  if (!trainer || trainer->incarnation == incarnation) return;
  const std::string detail = fmt::format(
      "{} is trained by the process {} now, and this request is of {}, which started "
      "before it",
      run_name(run), trainer->incarnation, incarnation);
  throw HttpError(409, std::string(kTrainerReplaced), detail,
                  "requests of the trainer that started last; this one has to end",
                  AuditNote{run, "replaced_trainer", detail});
}

void check_newest_attempt(Connection& connection, int64_t run, int64_t attempt) {
  if (attempt == 0) return;
  const int64_t newest = ledger::newest_attempt(connection, run);
  if (attempt >= newest) return;
  const std::string detail = fmt::format("attempt {} of {} has begun, and this request is of {}",
                                         newest, run_name(run), attempt);
  throw HttpError(409, "A newer attempt has begun", detail,
                  fmt::format("requests of attempt {}", newest),
                  AuditNote{run, "stale_attempt", detail});
}

}  // namespace gnomon
