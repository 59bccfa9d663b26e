#include "trainer/engine/hf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/errors.h"
#include "base/files.h"
#include "numerics/formats.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/hf_import.h"

namespace gnomon::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int64_t kNoShards = int64_t{1} << 40;

class HfExport : public testing::Test {
 protected:
  HfExport() {
    EngineConfig config = small_engine(directory.path());
    config.model.tie_embeddings = false;
    Engine engine(config);
    engine.initialize();
    train_hashes(engine, 2);
    checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
    const CheckpointContent content = engine.checkpoint();
    for (const TensorView& view : content.optimizer) {
      if (!view.name.starts_with("master.")) continue;
      const auto* data = static_cast<const float*>(view.data);
      masters[view.name.substr(7)].assign(data, data + view.bytes() / 4);
    }
  }
  std::vector<std::string> write(std::optional<Compute> dtype,
                                 int64_t shard_bytes_max = kNoShards) {
    return export_hf(checkpoint, out, dtype, shard_bytes_max);
  }
  // What the exported tensor holds, against its master after `as_stored`.
  template <class Word, class Rounding>
  void expect_values(const std::string& dtype, Rounding as_stored) {
    const HfCheckpoint written(out);
    EXPECT_THAT(written.dtypes(), ElementsAre(dtype));
    EXPECT_EQ(written.weights().tensors().size(), masters.size());
    for (const auto& [name, values] : masters) {
      const TensorView& view = *written.weights().find(name)->view;
      ASSERT_EQ(view.bytes(), static_cast<int64_t>(values.size() * sizeof(Word))) << name;
      for (size_t i = 0; i < values.size(); ++i) {
        Word found;
        std::memcpy(&found, static_cast<const std::byte*>(view.data) + i * sizeof found,
                    sizeof found);
        ASSERT_EQ(to_float(found), as_stored(values[i])) << name << " " << i;
      }
    }
  }

  TemporaryDirectory directory;
  fs::path checkpoint;
  fs::path out = directory.path() / "model";
  std::map<std::string, std::vector<float>> masters;
};

float rounded(float value) { return to_float(to_bf16(value)); }

TEST_F(HfExport, AsStoredAreTheWorkingWeights) {
  EXPECT_THAT(write(std::nullopt), ElementsAre("model.safetensors", "config.json"));
  expect_values<bf16>("BF16", rounded);
  EXPECT_EQ(HfCheckpoint(out).config(), HfCheckpoint(checkpoint).config());
  EXPECT_THAT(read_file(out / "config.json"), HasSubstr("bfloat16"));
}

TEST_F(HfExport, Fp32OfACheckpointAreItsMasters) {
  write(Compute::kFp32);
  expect_values<float>("F32", [](float value) { return value; });
  EXPECT_THAT(read_file(out / "config.json"), HasSubstr("float32"));
}

TEST_F(HfExport, Bf16OfFp32IsRoundedAndFp32OfBf16Widened) {
  write(Compute::kFp32);
  checkpoint = out;
  out = directory.path() / "narrow";
  write(Compute::kBf16);
  expect_values<bf16>("BF16", rounded);
  checkpoint = out;
  out = directory.path() / "wide";
  write(Compute::kFp32);
  expect_values<float>("F32", rounded);
}

TEST_F(HfExport, ShardsHoldTheSameWeights) {
  EXPECT_GT(write(Compute::kFp32, 20'000).size(), 3u);
  EXPECT_GT(HfCheckpoint(out).weights().files().size(), 1u);
  expect_values<float>("F32", [](float value) { return value; });
}

TEST_F(HfExport, WhatIsThereStays) {
  fs::create_directory(out);
  EXPECT_THROW(write(std::nullopt), ConfigError);
  EXPECT_TRUE(fs::is_empty(out));
}

// What transformers saved, read and written again.
class HfRoundTrip : public testing::TestWithParam<std::string> {};

TEST_P(HfRoundTrip, GivesBackShapeAndValues) {
  const TemporaryDirectory directory;
  const HfCheckpoint source(fs::path(GNOMON_GOLDEN_DIRECTORY) / GetParam());
  export_hf(source.weights().path(), directory.path() / "model", std::nullopt, kNoShards);
  const HfCheckpoint again(directory.path() / "model");
  EXPECT_EQ(again.config(), source.config());
  EXPECT_EQ(again.dtypes(), source.dtypes());
  std::vector<float> before(static_cast<size_t>(source.layout().elements())), after = before;
  source.read(before);
  again.read(after);
  EXPECT_EQ(after, before);
  EXPECT_THAT(read_file(directory.path() / "model" / "config.json"),
              HasSubstr(GetParam().substr(0, 5)));
}

INSTANTIATE_TEST_SUITE_P(Models, HfRoundTrip, testing::Values("llama", "llama3", "qwen2", "qwen3"),
                         [](const auto& instance) { return instance.param; });

TEST_F(HfExport, ADamagedCheckpointLeavesNothing) {
  std::string bytes = read_file(checkpoint / "model.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(checkpoint / "model.safetensors", bytes);
  EXPECT_THROW(write(std::nullopt), CheckpointError);
  EXPECT_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace gnomon::test
