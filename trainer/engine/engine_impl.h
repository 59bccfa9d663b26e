// What is behind Engine; shared by engine.cc (steps) and engine_state.cc (checkpoints).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "storage/token_shards.h"
#include "trainer/engine/data_order.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/model.h"
#include "trainer/engine/optimizer.h"
#include "trainer/engine/scaling.h"

namespace gnomon {

struct Engine::Impl {
  Impl(EngineConfig engine_config, EngineRole engine_role);

  std::vector<SitePrecision> resolve(const PrecisionPlan& wanted) const;
  void read_batch(int64_t step, int64_t micro_batch);
  bool batch_is_corrupt(int64_t step) const;
  void flip_bits();
  uint64_t weights_hash() const;
  template <class E>
  void make_model();
  std::string state_json() const;

  EngineConfig config;
  EngineRole role;
  Dataset data;
  DataOrder order;
  ScalingState scaling;
  std::unique_ptr<BackendBase> backend;
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<ArenaSize> arenas;

  bool ready = false;  // initialize() or load() was called
  int64_t step = 0;
  PrecisionPlan plan;
  std::vector<SitePrecision> sites;  // plan, resolved
  std::vector<bool> fired;           // by fault: bit flips strike once
  std::vector<int32_t> sequence;     // T + 1 tokens
  std::vector<int32_t> tokens, targets;
  std::vector<int32_t> heldout_tokens, heldout_targets;
};

// The checks of EngineConfig that need neither data nor memory. Throws ConfigError.
void check_engine_config(const EngineConfig& config);

}  // namespace gnomon
