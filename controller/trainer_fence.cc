#include "controller/trainer_fence.h"

#include <fmt/format.h>

#include "controller/auth/refusal.h"
#include "storage/ledger_runs.h"
#include "storage/ledger_trainers.h"

namespace gnomon {

void check_trainer(Connection& connection, int64_t run, const std::string& incarnation) {
  if (incarnation.empty()) return;
  const auto trainer = ledger::find_trainer(connection, run);
  if (!trainer || trainer->incarnation == incarnation) return;
  const std::string detail = fmt::format(
      "{} is trained by the process {} now, and this request is of {}, which started "
      "before it",
      run_name(run), trainer->incarnation, incarnation);
  throw Refusal(409, std::string(kTrainerReplaced), detail,
                "requests of the trainer that started last; this one has to end",
                AuditNote{run, "replaced_trainer", detail});
}

void check_newest_attempt(Connection& connection, int64_t run, int64_t attempt) {
  if (attempt == 0) return;
  const int64_t newest = ledger::newest_attempt(connection, run);
  if (attempt >= newest) return;
  const std::string detail = fmt::format("attempt {} of {} has begun, and this request is of {}",
                                         newest, run_name(run), attempt);
  throw Refusal(409, "A newer attempt has begun", detail,
                fmt::format("requests of attempt {}", newest),
                AuditNote{run, "stale_attempt", detail});
}

}  // namespace gnomon
