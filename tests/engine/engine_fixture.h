// Small models and small datasets for the engine's tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"
#include "trainer/engine/engine.h"

namespace gnomon::test {

inline const std::string kDown = "model.layers.1.mlp.down_proj";  // a site of the fixture's model

std::vector<uint32_t> uniform_tokens(uint64_t key, int32_t vocabulary, int64_t count);
// Tokens that can be learned: each follows from the two before it by a fixed rule, one in eight is
// random.
std::vector<uint32_t> learnable_tokens(uint64_t key, int32_t vocabulary, int64_t count);

// Two layers, width 32, four query heads over two key heads; vocabulary 64.
ModelConfig small_model();
// small_model on a dataset of three shards (97 sequences of 16 tokens) written under `directory`;
// two sequences of 16 tokens in two micro-batches per step.
EngineConfig small_engine(const std::filesystem::path& directory);

// Trains and returns the weights' hash after each step.
std::vector<uint64_t> train_hashes(Engine& engine, int steps);
// Writes the engine's present state as a checkpoint of attempt 1 below `root`.
std::filesystem::path write_checkpoint(const Engine& engine, const std::filesystem::path& root);

}  // namespace gnomon::test
