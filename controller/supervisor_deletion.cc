// How a run goes for good.
#include <fmt/format.h>

#include <limits>

#include "controller/refusal.h"
#include "controller/supervisor.h"
#include "storage/ledger_audit.h"
#include "storage/ledger_deletion.h"

namespace gnomon {
namespace {

constexpr int64_t kRowsAtOnce = 1000;
constexpr const char* kReason = "the run is being deleted";

}  // namespace

bool Supervisor::delete_run(LedgerTransaction& transaction, int64_t id) {
  Connection& connection = transaction.connection();
  const std::optional<ledger::RunRow> row = ledger::load_run(connection, id);
  if (!row) throw unknown_run(run_name(id));
  const std::string label = row->label();
  if (row->state == "live") {
    throw Refusal(409, "The run is live", fmt::format("{} has not ended", label),
                  "a run that is completed, stopped or failed; one whose trainer is gone for good "
                  "is ended by POST finished with the outcome failed");
  }
  if (row->state != ledger::kDeleting) {
    ledger::begin_deletion(connection, id, kReason, now());
    runs_.erase(id);
    transaction.on_commit([this, id] {
      deadlines_.set(id, std::numeric_limits<double>::infinity());
      metrics_.drop_run_at(id, steady_now());
      bells_.work.forget_run(id);
      bells_.directives.of(id).ring();
    });
    return false;
  }
  if (ledger::delete_some_of_run(connection, id, kRowsAtOnce) > 0) return false;
  ledger::end_deletion(connection, id);
  ledger::insert_audit(connection, now(), id, "run_deleted", label);
  stream(transaction, id, "run_deleted",
         fmt::format(R"({{"run":"{}","state":"deleted"}})", run_name(id)));
  return true;
}

}  // namespace gnomon
