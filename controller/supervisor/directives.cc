#include "controller/supervisor/directives.h"

#include <fmt/format.h>

#include "controller/auth/http_error.h"
#include "controller/supervisor/checks.h"
#include "protocol/json.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"

namespace gnomon {

DirectiveList deliver_directives(WriteContext write, int64_t id, int64_t after) {
  write.runs.load(write.transaction, id);
  Connection& connection = write.transaction.connection();
  DirectiveList list{ledger::open_directives(connection, id, after)};
  for (Directive& directive : list.directives) {
    if (directive.state == "pending") {
      ledger::mark_delivered(connection, id, directive.number, write.runs.now());
      directive.state = "delivered";
    }
  }
  return list;
}

Directive acknowledge_directive(WriteContext write, int64_t id, int64_t number,
                                const DirectiveAck& ack) {
  CachedRun& run = write.runs.load(write.transaction, id);
  Connection& connection = write.transaction.connection();
  std::optional<Directive> known = ledger::find_directive(connection, id, number);
  if (!known) {
    throw HttpError(404, "Unknown directive",
                    fmt::format("{} has no directive {}", run.label, number),
                    fmt::format("a number from 1 to {}", ledger::last_directive(connection, id)));
  }
  bool ends = ack.state == "applied" || ack.state == "rejected";
  if (!ends && ack.state != "acknowledged") {
    throw HttpError(400, "Value not accepted", fmt::format("state is \"{}\"", ack.state),
                    "acknowledged, applied or rejected");
  }
  const auto state = DirectiveState::on_record(ack.state);
  if (known->state == state) {
    return *known;
  }
  require_step_of(run.registration, ack.step, "step", 0);
  check_newest_attempt(connection, id, ack.attempt);
  if (known->state == "expired" && !ends) {
    return *known;  // it says that the directive is not to be carried out any more
  }
  if (known->state == "applied" || known->state == "rejected") {
    std::string detail = fmt::format("directive {} of {} is {} and cannot become {}", number,
                                     run.label, known->state, ack.state);
    throw HttpError(409, "The directive has ended", detail, known->state,
                    AuditNote{id, "impossible_ack", detail});
  }
  if (known->state == "expired") {
    ledger::insert_audit(connection, write.runs.now(), id, "late_ack",
                         fmt::format("directive {} of {} had expired and is {} after all", number,
                                     run.label, ack.state));
  }
  if (ends) {
    ledger::end_directive(connection, id, number, state, ack, write.runs.now());
    write.runs.record_event(
        write.transaction, run,
        decide::DirectiveChanged{number, state, ack.attempt, ack.step, ack.reason});
  } else {
    ledger::acknowledge_directive(connection, id, number, write.runs.now());
  }
  known->state = state;
  write.runs.stream(write.transaction, id, "directive", to_json(*known));
  return *known;
}

}  // namespace gnomon
