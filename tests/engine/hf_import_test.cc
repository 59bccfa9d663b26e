#include "trainer/engine/hf_import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/errors.h"
#include "base/files.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

// A model directory whose tensors can be changed before it is written.
class HfImport : public testing::Test {
 protected:
  struct Stored {
    std::string name;
    std::string dtype;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
  };

  explicit HfImport(const std::string& golden = "llama") {
    const fs::path source = fs::path(GNOMON_GOLDEN_DIRECTORY) / golden;
    config = boost::json::parse(read_file(source / "config.json"));
    const SafetensorsDirectory weights(source);
    for (const auto& [name, tensor] : weights.tensors()) {
      const auto* data = static_cast<const std::byte*>(tensor.view->data);
      stored.push_back(
          {name, tensor.view->dtype, tensor.view->shape, {data, data + tensor.view->bytes()}});
    }
  }

  Stored& tensor(const std::string& name) {
    return *std::find_if(stored.begin(), stored.end(),
                         [&](const Stored& one) { return one.name == name; });
  }
  void remove(const std::string& name) {
    std::erase_if(stored, [&](const Stored& one) { return one.name == name; });
  }
  HfCheckpoint write_and_open() {
    write_file_atomically(path() / "config.json", boost::json::serialize(config));
    std::vector<TensorView> views;
    for (const Stored& one : stored)
      views.push_back({one.name, one.dtype, one.shape, one.bytes.data()});
    write_safetensors(path() / "model.safetensors", views);
    return HfCheckpoint(path());
  }
  std::string error() {
    try {
      write_and_open();
    } catch (const FormatError& error) {
      return error.what();
    }
    return "accepted";
  }
  std::vector<float> values() {
    const HfCheckpoint checkpoint = write_and_open();
    std::vector<float> all(static_cast<size_t>(checkpoint.layout().elements()), 0.0f);
    checkpoint.read(all);
    return all;
  }
  // Every stored value as BF16 or F16, cut off: only the reading is of interest.
  void store_as(const std::string& dtype) {
    for (Stored& one : stored) {
      std::vector<std::byte> halves(one.bytes.size() / 2);
      for (size_t i = 0; i < halves.size() / 2; ++i) {
        float value;
        std::memcpy(&value, &one.bytes[4 * i], sizeof value);
        const uint32_t bits = std::bit_cast<uint32_t>(value);
        uint16_t half = static_cast<uint16_t>(bits >> 16);
        if (dtype == "F16") {  // normal values of F16 only; smaller ones become zero
          const int exponent = static_cast<int>(bits >> 23 & 0xff) - 127 + 15;
          half = static_cast<uint16_t>(bits >> 16 & 0x8000);
          if (exponent > 0)
            half = static_cast<uint16_t>(half | exponent << 10 | (bits >> 13 & 0x3ff));
        }
        std::memcpy(&halves[2 * i], &half, sizeof half);
      }
      one.dtype = dtype;
      one.bytes = std::move(halves);
    }
  }
  const fs::path& path() const { return directory.path(); }

  TemporaryDirectory directory;
  boost::json::value config;
  std::vector<Stored> stored;
};

class HfImportTied : public HfImport {
 protected:
  HfImportTied() : HfImport("qwen2") {}
};

TEST_F(HfImport, ReadsEveryDtypeToTheValuesItHolds) {
  const std::vector<float> exact = values();
  EXPECT_THAT(write_and_open().dtypes(), ElementsAre("F32"));
  for (const auto& [dtype, step] : {std::pair{"BF16", 0x1p-7f}, std::pair{"F16", 0x1p-10f}}) {
    std::vector<Stored> before = stored;
    store_as(dtype);
    const std::vector<float> found = values();
    EXPECT_THAT(write_and_open().dtypes(), ElementsAre(dtype));
    int different = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      EXPECT_LE(std::abs(found[i]), std::abs(exact[i]));
      EXPECT_LE(std::abs(found[i] - exact[i]), step * std::abs(exact[i]) + 0x1p-14f) << i;
      different += found[i] != exact[i];
    }
    EXPECT_GT(different, static_cast<int>(exact.size() / 2)) << "nothing was rounded";
    stored = before;
  }
}

TEST_F(HfImport, AMissingTensorIsNamedWithTheShapeItShouldHave) {
  remove("model.layers.1.mlp.up_proj.weight");
  EXPECT_THAT(error(), AllOf(HasSubstr(path().string()), HasSubstr("model.layers.1.mlp.up_proj"),
                             HasSubstr("[48, 32]")));
}

TEST_F(HfImport, ATensorThatTheModelHasNotIsNamed) {
  stored.push_back(tensor("model.norm.weight"));
  stored.back().name = "model.layers.2.input_layernorm.weight";
  EXPECT_THAT(error(),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("model.layers.2.input_layernorm")));
  stored.back().name = "model.layers.0.self_attn.q_proj.bias";
  EXPECT_THAT(error(), HasSubstr("q_proj.bias"));
}

TEST_F(HfImport, AWrongShapeOrDtypeIsNamedWithWhatIsWanted) {
  tensor("model.layers.0.self_attn.k_proj.weight").shape = {32, 16};
  EXPECT_THAT(error(),
              AllOf(HasSubstr("k_proj.weight\" as F32 [32, 16]"), HasSubstr("shape [16, 32]")));
  tensor("model.layers.0.self_attn.k_proj.weight").shape = {16, 32};
  tensor("model.norm.weight").dtype = "I32";
  EXPECT_THAT(error(), AllOf(HasSubstr("model.norm.weight\" as I32"), HasSubstr("BF16, F16, F32")));
}

TEST_F(HfImport, AConfigurationOfAnotherShapeIsFoundOut) {
  config.as_object()["vocab_size"] = 64;
  EXPECT_THAT(error(), AllOf(HasSubstr("[61, 32]"), HasSubstr("[64, 32]")));
}

TEST_F(HfImport, RotaryBuffersOfOldFilesArePassedOver) {
  stored.push_back(tensor("model.norm.weight"));
  stored.back().name = "model.layers.0.self_attn.rotary_emb.inv_freq";
  EXPECT_NO_THROW(write_and_open());
}

TEST_F(HfImport, AValueThatIsNotFiniteIsNamedWithItsPlace) {
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), -HUGE_VALF}) {
    std::memcpy(&tensor("lm_head.weight").bytes[4 * 5], &bad, sizeof bad);
    try {
      values();
      ADD_FAILURE() << "accepted " << bad;
    } catch (const FormatError& error) {
      EXPECT_THAT(error.what(), HasSubstr("at element 5 of \"lm_head.weight\""));
    }
  }
}

TEST_F(HfImportTied, AHeadOfATiedModelIsPassedOverOnlyWhenItIsTheEmbedding) {
  stored.push_back(tensor("model.embed_tokens.weight"));
  stored.back().name = "lm_head.weight";
  EXPECT_NO_THROW(write_and_open());
  stored.back().bytes[7] ^= std::byte{1};
  EXPECT_THAT(error(), AllOf(HasSubstr("lm_head.weight"), HasSubstr("tie_word_embeddings")));
}

TEST_F(HfImportTied, ShardsAndOneFileGiveTheSameValues) {
  const HfCheckpoint sharded(fs::path(GNOMON_GOLDEN_DIRECTORY) / "qwen2");
  ASSERT_EQ(sharded.weights().files().size(), 2u);
  std::vector<float> expected(static_cast<size_t>(sharded.layout().elements()), 0.0f);
  sharded.read(expected);
  EXPECT_EQ(values(), expected);
}

class EngineFrom : public testing::Test {
 protected:
  EngineFrom() : source(small_engine(directory.path())) {
    source.seed = 77;
    source.compute = Compute::kFp32;
    Engine engine(source);
    engine.initialize();
    train_hashes(engine, 3);
    hash = engine.weights_hash();
    loss = engine.evaluate(engine.plan());
    checkpoint = write_checkpoint(engine, directory.path() / "checkpoints");
  }
  TemporaryDirectory directory;
  EngineConfig source;
  uint64_t hash = 0;
  double loss = 0;
  fs::path checkpoint;
};

TEST_F(EngineFrom, StepZeroHasTheWeightsOfTheDirectory) {
  EngineConfig config = source;
  config.seed = 1;
  config.from = checkpoint;
  Engine engine(config);
  engine.initialize();
  EXPECT_EQ(engine.step(), 0);
  EXPECT_EQ(engine.weights_hash(), hash);
  EXPECT_EQ(engine.evaluate(engine.plan()), loss);
  train_hashes(engine, 2);
  engine.initialize();
  EXPECT_EQ(engine.weights_hash(), hash) << "again from the start";
}

TEST_F(EngineFrom, MastersKeepWhatBf16CannotHold) {
  EngineConfig config = source;
  config.from = checkpoint;
  config.compute = Compute::kBf16;
  Engine engine(config);
  engine.initialize();
  EXPECT_NEAR(engine.evaluate(engine.plan()), loss, 1e-2 * loss);
  SafetensorsFile weights(checkpoint / "model.safetensors");
  const CheckpointContent content = engine.checkpoint();
  const auto* master =
      std::find_if(content.optimizer.data(), content.optimizer.data() + content.optimizer.size(),
                   [](const TensorView& view) { return view.name == "master.model.norm.weight"; });
  ASSERT_NE(master, content.optimizer.data() + content.optimizer.size());
  EXPECT_EQ(std::memcmp(master->data, weights.find("model.norm.weight")->data,
                        static_cast<size_t>(master->bytes())),
            0);
}

TEST_F(EngineFrom, CheckpointsSayWhereTheRunBeganAndLoadWithoutIt) {
  EngineConfig config = source;
  config.from = checkpoint;
  Engine engine(config);
  engine.initialize();
  train_hashes(engine, 1);
  const fs::path later = write_checkpoint(engine, directory.path() / "later");
  const std::vector<uint64_t> expected = train_hashes(engine, 2);
  fs::remove_all(checkpoint);
  EngineConfig read = read_engine_config(later);
  EXPECT_EQ(read.from, checkpoint.string());
  Engine other(read);
  other.load(later);
  EXPECT_EQ(train_hashes(other, 2), expected);
  EXPECT_THROW(other.initialize(), Error);
}

TEST_F(EngineFrom, AnotherShapeIsRefused) {
  EngineConfig config = source;
  config.from = checkpoint;
  config.model.norm_eps = 1e-6;
  Engine engine(config);
  EXPECT_THROW(engine.initialize(), ConfigError);
}

TEST(HalfToFloat, EveryHalfIsItsValue) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const int exponent = static_cast<int>(bits >> 10 & 0x1f);
    const int fraction = static_cast<int>(bits & 0x3ff);
    const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
    const float found = half_to_float(static_cast<uint16_t>(bits));
    if (exponent == 0x1f) {
      EXPECT_EQ(std::isinf(found), fraction == 0) << bits;
      EXPECT_EQ(std::isnan(found), fraction != 0) << bits;
    } else {
      const double value =
          exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
      EXPECT_EQ(static_cast<double>(found), sign * value) << bits;
    }
    EXPECT_EQ(std::signbit(found), (bits & 0x8000) != 0) << bits;
  }
}

}  // namespace
}  // namespace gnomon::test
