// The records that cross a process boundary or stand in the ledger, one noun a file. Hashes are
// texts that are only compared; times are seconds since the epoch, durations are seconds.
#pragma once

#include "protocol/records/checkpoint.h"
#include "protocol/records/decision.h"
#include "protocol/records/directive.h"
#include "protocol/records/fingerprint.h"
#include "protocol/records/ledger.h"
#include "protocol/records/notice.h"
#include "protocol/records/override.h"
#include "protocol/records/problem.h"
#include "protocol/records/replay.h"
#include "protocol/records/run.h"
#include "protocol/records/statistics.h"
#include "protocol/records/step.h"
#include "protocol/records/window.h"

// Every message, for what is done with each: X(Record).
#define GNOMON_EACH_RECORD(X) \
  X(Fingerprint)              \
  X(Capabilities)             \
  X(InjectedFault)            \
  X(RunRegistration)          \
  X(RunRegistered)            \
  X(AttemptStart)             \
  X(DeviceHealth)             \
  X(StepReport)               \
  X(StepBatch)                \
  X(ReportAck)                \
  X(CheckpointReport)         \
  X(TrainerNotice)            \
  X(RunFinished)              \
  X(Directive)                \
  X(DirectiveList)            \
  X(DirectiveAck)             \
  X(StatisticsRow)            \
  X(StatisticsReport)         \
  X(OverrideRequest)          \
  X(OverrideAccepted)         \
  X(EndRequest)               \
  X(LeaseRequest)             \
  X(ReplayTask)               \
  X(Lease)                    \
  X(LeaseHeartbeat)           \
  X(ReplayStep)               \
  X(SiteScoreRow)             \
  X(ReplayResult)             \
  X(LeaseFailure)             \
  X(Problem)

// Every row that is a table's, and every one that the API shows.
#define GNOMON_EACH_TABLE(X) \
  X(RunRow)                  \
  X(FaultRow)                \
  X(AttemptRow)              \
  X(StepRow)                 \
  X(CheckpointRow)           \
  X(PlanRow)                 \
  X(WindowRow)               \
  X(ReplayRow)               \
  X(ResultRow)               \
  X(ReplayStepRow)           \
  X(ScoreRow)                \
  X(LeaseRow)                \
  X(DecisionRow)             \
  X(DirectiveRow)            \
  X(OverrideRow)             \
  X(NoticeRow)               \
  X(DeviceHealthRow)         \
  X(EventRow)                \
  X(AuditRow)                \
  X(OutboxRow)               \
  X(ConditionRow)
#define GNOMON_EACH_SHOWN_ROW(X) \
  X(FaultRow)                    \
  X(AttemptRow)                  \
  X(StepRow)                     \
  X(CheckpointRow)               \
  X(PlanRow)                     \
  X(WindowRow)                   \
  X(ShownReplay)                 \
  X(ShadowStepRow)               \
  X(ShownDecision)               \
  X(DirectiveRow)                \
  X(OverrideRow)                 \
  X(NoticeRow)                   \
  X(DeviceHealthRow)             \
  X(AuditRow)                    \
  X(Notification)
