// The records that cross a process boundary, one noun a file. Hashes are texts that are only
// compared; times are seconds since the epoch, durations are seconds.
#pragma once

#include "protocol/records/checkpoint.h"
#include "protocol/records/directive.h"
#include "protocol/records/fingerprint.h"
#include "protocol/records/notice.h"
#include "protocol/records/override.h"
#include "protocol/records/problem.h"
#include "protocol/records/replay.h"
#include "protocol/records/run.h"
#include "protocol/records/statistics.h"
#include "protocol/records/step.h"

// Every record, for what is done with each: X(Record).
#define GNOMON_EACH_RECORD(X) \
  X(Fingerprint)              \
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
