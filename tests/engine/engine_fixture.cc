#include "tests/engine/engine_fixture.h"

#include <gtest/gtest.h>

#include "base/philox.h"
#include "storage/checkpoint_store.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {

std::vector<uint32_t> uniform_tokens(uint64_t key, int32_t vocabulary, int64_t count) {
  std::vector<uint32_t> tokens(static_cast<size_t>(count));
  for (size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = philox(key, 7, i)[0] % static_cast<uint32_t>(vocabulary);
  }
  return tokens;
}

std::vector<uint32_t> learnable_tokens(uint64_t key, int32_t vocabulary, int64_t count) {
  std::vector<uint32_t> tokens = uniform_tokens(key, vocabulary, count);
  for (size_t i = 2; i < tokens.size(); ++i) {
    if (philox(key, 8, i)[0] % 8 == 0) continue;
    tokens[i] = (5 * tokens[i - 1] + tokens[i - 2] + 3) % static_cast<uint32_t>(vocabulary);
  }
  return tokens;
}

ModelConfig small_model() {
  ModelConfig model;
  model.layers = 2;
  model.width = 32;
  model.heads = 4;
  model.kv_heads = 2;
  model.ffn = 48;
  model.vocabulary = 64;
  model.context = 64;
  return model;
}

EngineConfig small_engine(const std::filesystem::path& directory) {
  EngineConfig config;
  config.model = small_model();
  config.batch = {.sequences = 2, .tokens = 16, .accumulation = 2};
  config.optimizer.learning_rate = 3e-3;
  config.optimizer.warmup_steps = 5;
  config.optimizer.total_steps = 100;
  config.heldout_sequences = 5;
  config.data = directory / "data";
  write_token_dataset(
      config.data,
      {learnable_tokens(1, 64, 500), learnable_tokens(2, 64, 37), learnable_tokens(3, 64, 1016)},
      learnable_tokens(4, 64, 200), 64);
  return config;
}

std::vector<uint64_t> train_hashes(Engine& engine, int steps) {
  std::vector<uint64_t> hashes;
  for (int i = 0; i < steps; ++i) {
    const StepResult result = engine.train_step();
    hashes.push_back(result.weights_hash);
    if (engine.config().faults.empty()) {
      EXPECT_FALSE(result.state_changed) << "step " << result.step;
    }
  }
  return hashes;
}

std::filesystem::path write_checkpoint(const Engine& engine, const std::filesystem::path& root) {
  return CheckpointStore(root).write(1, engine.step(), engine.checkpoint()).path;
}

}  // namespace gnomon::test
