// Turns what the decision core wants (effects) into rows, inside the write in which its event was
// recorded.
#pragma once

#include "controller/decide/events.h"
#include "controller/metrics/metrics.h"
#include "controller/supervisor/change_notifier.h"
#include "controller/supervisor/replay_queue.h"
#include "storage/ledger.h"
#include "storage/ledger_windows.h"

namespace gnomon {

struct EffectContext {
  LedgerTransaction& transaction;
  Metrics& metrics;
  ReplayQueue& queue;
  ChangeNotifiers& notifiers;
  int64_t run = 0;
  int64_t event_seq = 0;
  double time = 0;
};

// As the replay queue has it.
QueuedReplay queued_replay(const ReplayRow& row);

void apply_effect(const EffectContext& context, const decide::Effect& effect);

}  // namespace gnomon
