#include "controller/supervisor/checks.h"

#include <fmt/format.h>

#include <algorithm>

#include "controller/auth/refusal.h"
#include "controller/trainer_fence.h"

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
  throw Refusal(
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
    throw Refusal(
        409, std::string(kUnknownPlan), fmt::format("plan_version is {}", plan_version),
        fmt::format("0 to {}, or that of a plan of the notice plan_without_controller; a "
                    "trainer that knows newer ones says so in newest_plan_version when it "
                    "registers",
                    newest));
  }
  run.known_plans.insert(plan_version);
}

}  // namespace gnomon
