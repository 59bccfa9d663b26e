// Replays of a window in one arm over the engine. The verifier, `gnomon replay` and inline
// verification use it.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/errors.h"
#include "protocol/records.h"
#include "trainer/engine/engine.h"

namespace gnomon {

// How large a perturbation is where a request does not say: half the distance of BF16 numbers.
inline constexpr double kPerturbScale = 0x1p-9;

struct ReplayRequest {
  std::filesystem::path checkpoint;
  int64_t steps = 0;
  std::string arm = "bf16";                   // one of kArms
  std::string plan_toml = {};                 // arm "plan"; others: if not the checkpoint's
  std::filesystem::path end_checkpoint = {};  // may be empty
  bool evaluate_endpoints = false;
  // Other than 0, in any arm: the start's master weights are multiplied by 1 + scale·N(0, 1), drawn
  // from (perturb, element); bf16-perturbed draws its orders from it too (from 1 where it is 0).
  int64_t perturb = 0;
  double perturb_scale = kPerturbScale;
  EngineRole role = EngineRole::kReplay;  // kInline on the run's own device
};

// What a lease asks for, by an engine elsewhere.
ReplayRequest replay_request(const ReplayTask& task);

// What a caller's `progress` gets, now and then: the steps done. False abandons the replay.
using ReplayProgress = std::function<bool(int64_t steps)>;

// `progress` said so.
class ReplayAbandoned : public Error {
 public:
  using Error::Error;
};

// Runs it on this engine, whose state is then another one, also when it throws. Throws Error where
// the checkpoint is of a run with other settings than the engine's. Fills everything of the result
// but token and time. A replay that turns non-finite ends early and says so by its last step.
ReplayResult replay_on(Engine& engine, const ReplayRequest& request,
                       const ReplayProgress& progress = {});

// What replays run on, where that is not what the checkpoint's run had.
struct ReplayDevice {
  int threads = 0;  // 0: as many as the run
  std::optional<Device> device = {};
};

// Keeps one engine between replays as long as the checkpoints' configurations agree.
class Replayer {
 public:
  // `on` overrides the checkpoint's (bits then differ: the fingerprint says so). With `ranks`,
  // which must outlive it, replays run on all of them (engine_ranks.h); a run whose micro-batches
  // they cannot share is an Error, which another verifier may not have. With `roots`, checkpoints
  // and data that lie elsewhere are an Error before anything of them is read.
  explicit Replayer(ReplayDevice on = {}, EngineRanks* ranks = nullptr,
                    std::vector<std::filesystem::path> roots = {});
  ~Replayer();

  // As replay_on().
  ReplayResult run(const ReplayRequest& request, const ReplayProgress& progress = {});

 private:
  std::unique_ptr<Engine> make_engine(const EngineConfig& config) const;
  void check_place(const std::string& what, const std::filesystem::path& path) const;

  std::unique_ptr<Engine> engine_;
  ReplayDevice on_;
  EngineRanks* ranks_;
  std::vector<std::filesystem::path> roots_;
};

}  // namespace gnomon
