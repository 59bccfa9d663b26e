// Notifies people of a run besides what the ledger has for them to look up. Without an outbox,
// or while it has no receiver, nobody is notified.
#pragma once

#include <cstdint>
#include <vector>

#include "controller/decide/events.h"
#include "controller/notify/outbox.h"
#include "controller/supervisor/cached_run.h"
#include "protocol/records.h"
#include "storage/ledger.h"

namespace gnomon {

// Reports what an event led to. `event` is null for one on record that is judged otherwise now.
void notify_people(notify::Outbox* outbox, LedgerTransaction& transaction, const CachedRun& run,
                   const decide::Event* event, const std::vector<decide::Effect>& effects,
                   double time);
// Reports a notice.
void notify_of_notice(notify::Outbox* outbox, LedgerTransaction& transaction, const CachedRun& run,
                      const TrainerNotice& notice, int64_t number, double time);

}  // namespace gnomon
