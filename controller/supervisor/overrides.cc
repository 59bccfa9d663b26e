#include "controller/supervisor/overrides.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "controller/auth/http_error.h"
#include "controller/supervisor/checks.h"
#include "controller/supervisor/policies_on_record.h"
#include "protocol/precision_plan.h"
#include "storage/json_rows.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_notices.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr double kExpiresMaxSeconds = 90 * 86400.0;
// Without an end they would be forgotten.
constexpr std::array<std::string_view, 3> kLastingKinds = {"set_plan", "silence", "mode"};

template <size_t size>
bool among(const std::array<std::string_view, size>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void check_expiry(const OverrideRequest& request, bool lasting) {
  double seconds = request.expires_seconds;
  std::string detail = fmt::format("expires_seconds is {} for kind {}", seconds, request.kind);
  if (lasting) {
    require(seconds > 0 && seconds <= kExpiresMaxSeconds, detail,
            "a number of seconds from now, above 0 and at most 7776000 (90 days)");
  } else {
    require(seconds == 0, detail, "none (0): this kind is one directive and does not expire");
  }
}

// Throws HttpError (400), or ConfigError with the plan's line.
void check_override(const OverrideRequest& request, const RunRegistration& registration) {
  bool lasting = among(kLastingKinds, request.kind);
  check_asker(request.owner, request.reason);
  check_expiry(request, lasting);
  if (request.kind == "mode") {
    require(!request.mode.empty(), "mode is \"\"", "observe, advise or enforce");
  } else {
    require(request.mode.empty(),
            fmt::format("mode is \"{}\" for kind {}", request.mode, request.kind),
            "a mode for kind mode only");
  }
  if (request.kind == "set_plan") {
    require(!request.plan.empty(), "plan is empty",
            "TOML; a plan without rules (`version = 1`) is BF16 for the whole run");
    PrecisionPlan::parse(request.plan, "plan")
        .check_sites(registration.sites, registration.layers, "plan");
  } else {
    require(request.plan.empty(), fmt::format("a plan is given for kind {}", request.kind),
            "a plan for kind set_plan only");
  }
}

std::string audit_line(const OverrideRequest& request) {
  std::string what = request.kind;
  if (request.kind == "mode") {
    what += fmt::format(" {}", request.mode);
  }
  if (request.expires_seconds > 0) {
    what += fmt::format(" for {} s", request.expires_seconds);
  }
  return fmt::format("{} by {}: {}", what, request.owner, request.reason);
}

template <typename Effect>
const Effect* first_of(const std::vector<decide::Effect>& effects) {
  for (const decide::Effect& effect : effects) {
    if (const auto* found = std::get_if<Effect>(&effect)) {
      return found;
    }
  }
  return nullptr;
}

}  // namespace

OverrideAccepted override_run(WriteContext write, int64_t id, const OverrideRequest& request) {
  CachedRun& run = write.runs.load(write.transaction, id);
  check_override(request, run.registration);
  Connection& connection = write.transaction.connection();
  double time = write.runs.now();
  double expires_at = request.expires_seconds > 0 ? time + request.expires_seconds : 0;
  decide::OperatorOverride asked{request.kind,  request.plan,   request.mode,
                                 request.owner, request.reason, expires_at};
  if (std::string why = decide::why_not(run.state, asked); !why.empty()) {
    throw HttpError(409, "The override makes no sense now", why);
  }
  std::vector<decide::Effect> effects = write.runs.record_event(write.transaction, run, asked);
  const auto* decision = first_of<decide::RecordDecision>(effects);
  const auto* directive = first_of<decide::IssueDirective>(effects);
  OverrideAccepted accepted{decision ? decision->decision : 0, directive ? directive->number : 0,
                            expires_at};
  OverrideRow row{request, id, 0, time, std::nullopt, accepted.decision};
  if (expires_at > 0) {
    row.expires_at = expires_at;
  }
  if (directive) {
    row.directive = directive->number;
  }
  int64_t number = ledger::insert_override(connection, std::move(row));
  ledger::insert_audit(connection, time, id, "override", audit_line(request));
  Query written =
      connection.query("SELECT * FROM overrides WHERE run = ? AND override = ?", id, number);
  write.runs.stream(write.transaction, id, "override", first_row_as_json(written));
  return accepted;
}

namespace {

// False for the policy of a version that had other keys.
bool can_be_read(const std::string& toml) {
  try {
    decide::Policy::parse(toml, "policy");
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

}  // namespace

void set_policy(WriteContext write, int64_t id, const std::string& toml) {
  decide::Policy policy = decide::Policy::parse(toml, "policy");
  const std::optional<RunRow> row = ledger::load_run(write.transaction.connection(), id);
  if (row && !can_be_read(row->policy)) {
    // What came after the state on record is decided under the new one.
    Connection& connection = write.transaction.connection();
    const std::optional<ledger::StateRow> saved = ledger::load_state(connection, id);
    record_replaced_policy(connection, write.runs.now(), id, saved ? saved->seq : 0, row->policy);
    ledger::set_policy(connection, id, toml);
    ledger::insert_audit(connection, write.runs.now(), id, "policy_changed", toml);
    write.runs.load(write.transaction, id);
    return;
  }
  CachedRun& run = write.runs.load(write.transaction, id);
  // Directives until now were sent under the old one.
  write.runs.save(write.transaction, run);
  record_replaced_policy(write.transaction.connection(), write.runs.now(), id, run.seq,
                         run.policy_text);
  run.policy_text = toml;
  run.policy = std::move(policy);
  ledger::set_policy(write.transaction.connection(), id, toml);
  write.runs.set_terms_on_commit(write.transaction, run);
  write.runs.show(write.transaction, run);
  ledger::insert_audit(write.transaction.connection(), write.runs.now(), id, "policy_changed",
                       toml);
}

}  // namespace gnomon
