// Replays of a window in one arm over the engine. The verifier, `gnomon replay` and inline
// verification use it.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "protocol/messages.h"
#include "trainer/engine/engine.h"

namespace gnomon {

struct ReplayRequest {
  std::filesystem::path checkpoint;
  int64_t steps = 0;
  std::string arm = "bf16";                   // bf16, same, plan
  std::string plan_toml = {};                 // arm "plan"
  std::filesystem::path end_checkpoint = {};  // may be empty
  bool evaluate_endpoints = false;
};

// Keeps one engine between replays as long as the checkpoints' configurations agree.
class Replayer {
 public:
  // `threads` > 0 overrides the checkpoint's thread count (bits then differ: the fingerprint says
  // so). With `ranks`, which must outlive it, replays run on all of them (engine_ranks.h); a run
  // whose micro-batches they cannot share is an Error, which another verifier may not have.
  explicit Replayer(int threads = 0, EngineRanks* ranks = nullptr);
  ~Replayer();

  // Runs it. `progress` gets the steps done and returns false to abandon (throws Error). Fills
  // everything of the result but token and time. A replay that turns non-finite ends early and says
  // so by its last step.
  ReplayResult run(const ReplayRequest& request, const std::function<bool(int64_t)>& progress = {});

 private:
  std::unique_ptr<Engine> engine_;
  int threads_;
  EngineRanks* ranks_;
};

}  // namespace gnomon
