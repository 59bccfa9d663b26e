// Engines that compute with several ranks. The program on rank 0 drives: every call of one of its
// engines is first told to the others, whose program is follow_engines(). All ranks then do the
// same call, each on its share; results are the same on every rank, except that only rank 0's
// checkpoint() has content.
#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "kernels/comm/collectives.h"
#include "trainer/engine/engine.h"

namespace gnomon {

struct EngineRanks {
  Collectives* collectives = nullptr;  // must outlive every engine
  int64_t engines = 0;                 // made so far, on rank 0
  // For the ranks that follow, if not the configuration's; rank 0 gives its own to Engine.
  std::optional<BackendMakers> backends = {};

  bool many() const { return collectives->size() > 1; }
};

enum class EngineCall {
  kCreate,
  kDestroy,
  kInitialize,
  kLoad,
  kCheckpoint,
  kSnapshotMemory,
  kSnapshot,
  kRestore,
  kPrepare,
  kSetPlan,
  kSetMode,
  kPerturb,
  kTrainStep,
  kEvaluate,
  kInspect,
  kWeightsHash,
  kFingerprint,
  kEnd,
};

// Tells the other ranks to make this call of engine number `engine`. On rank 0 of several; nothing
// elsewhere.
void send_to_followers(EngineRanks& ranks, EngineCall call, int64_t engine,
                       std::string argument = {}, bool flag = false);

// The arguments of kSetMode and kPerturb.
std::string mode_argument(const EngineMode& mode);
std::string perturb_argument(int64_t seed, double scale);

// What is said of an error to people and other ranks.
std::string cause_of(const std::exception& error);

// The fingerprint of all ranks (fingerprint.h) on a device and with so many threads, before there
// is an engine. Throws on all ranks what the makers of backends throw on some.
Fingerprint fingerprint_of_ranks(EngineRanks& ranks, const std::string& device, int threads);

// Runs `body` on every rank; if it throws on some, throws on all: there its own exception,
// elsewhere an Error that names those ranks. One that fails says why on its stderr. Nothing in
// `body` may wait for another rank.
void do_together(Collectives& ranks, const std::function<void()>& body);

// Makes rank 0's calls until it says that it is done. An Error that every rank has is
// rank 0's to report. Any other exception leaves this function, and the caller must end the job
// with it: the other ranks wait for this one.
void follow_engines(EngineRanks& ranks);

// Rank 0's end of the same: makes the followers return.
void end_followers(EngineRanks& ranks);

// A program's work on every rank: `lead` on rank 0, whose status this returns, and the calls that
// it makes on the others. An exception that leaves either ends a job of several ranks with its
// text, and leaves this function where there is one. `backends` as EngineRanks has them.
int lead_or_follow(Collectives& collectives, const std::function<int(EngineRanks&)>& lead,
                   std::optional<BackendMakers> backends = {});

}  // namespace gnomon
