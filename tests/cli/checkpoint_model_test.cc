// `gnomon checkpoint show` and `gnomon checkpoint export` on a checkpoint of a small model.
#include <gmock/gmock.h>

#include <boost/json.hpp>
#include <cstring>

#include "base/files.h"
#include "numerics/formats.h"
#include "storage/safetensors.h"
#include "tests/cli/program.h"
#include "tests/engine/engine_fixture.h"

namespace gnomon::cli {
namespace {

namespace fs = std::filesystem;
using test::EndedProcess;
using ::testing::AllOf;
using ::testing::HasSubstr;

class CheckpointModelTest : public ::testing::Test {
 protected:
  CheckpointModelTest() {
    Engine engine(test::small_engine(directory_.path()));
    engine.initialize();
    test::train_hashes(engine, 2);
    checkpoint_ = test::write_checkpoint(engine, directory_.path() / "checkpoints");
    parameters_ = engine.config().model.parameters();
  }
  EndedProcess export_to(const fs::path& out, std::vector<std::string> more = {}) {
    more.insert(more.begin(), {"checkpoint", "export", checkpoint_.string(), "--out", out});
    return run_gnomon(more);
  }
  boost::json::object show(const fs::path& path) {
    const EndedProcess result = run_gnomon({"checkpoint", "show", path.string(), "--json"});
    EXPECT_EQ(result.status, 0) << result.errors;
    return boost::json::parse(result.output).as_object();
  }
  static bool same_bytes(const TensorView& a, const TensorView& b) {
    return a.dtype == b.dtype && a.shape == b.shape &&
           std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0;
  }
  fs::path path(const char* name) const { return directory_.path() / name; }

  test::TemporaryDirectory directory_;
  fs::path checkpoint_;
  int64_t parameters_ = 0;
};

TEST_F(CheckpointModelTest, ShowTellsTheModelItsFilesAndWhereItBegan) {
  const boost::json::object object = show(checkpoint_);
  EXPECT_EQ(object.at("model_type").as_string(), "llama");
  EXPECT_EQ(object.at("layers").as_int64(), 2);
  EXPECT_EQ(object.at("heads").as_int64(), 4);
  EXPECT_EQ(object.at("kv_heads").as_int64(), 2);
  EXPECT_EQ(object.at("vocabulary").as_int64(), 64);
  EXPECT_EQ(object.at("parameters").as_int64(), parameters_);
  EXPECT_EQ(object.at("dtypes").as_array(), boost::json::array{"BF16"});
  EXPECT_EQ(object.at("files").as_array(), boost::json::array{"model.safetensors"});
  EXPECT_EQ(object.at("bytes").as_int64(), 2 * parameters_);
  EXPECT_EQ(object.at("compute").as_string(), "bf16");
  EXPECT_EQ(object.at("from").as_string(), "the seed");
  EXPECT_NE(object.at("norm_eps").to_number<double>(), 0.0);
  const EndedProcess words = run_gnomon({"checkpoint", "show", checkpoint_.string()});
  EXPECT_THAT(words.output, AllOf(HasSubstr("model_type"), HasSubstr("llama"),
                                  HasSubstr(std::to_string(parameters_)), HasSubstr("1e-05")));
}

TEST_F(CheckpointModelTest, ExportWritesTheWeightsAsStoredOrTheMasters) {
  const SafetensorsFile model(checkpoint_ / "model.safetensors");
  const SafetensorsFile optimizer(checkpoint_ / "optimizer.safetensors");
  const EndedProcess stored = export_to(path("stored"));
  EXPECT_EQ(stored.status, 0) << stored.errors;
  EXPECT_EQ(stored.output, path("stored").string() + ": model.safetensors, config.json\n");
  const EndedProcess masters = export_to(path("masters"), {"--dtype", "fp32", "--json"});
  EXPECT_EQ(masters.status, 0) << masters.errors;
  EXPECT_EQ(boost::json::parse(masters.output).at("files").as_array().size(), 2u);
  const SafetensorsFile as_stored(path("stored") / "model.safetensors");
  const SafetensorsFile fp32(path("masters") / "model.safetensors");
  ASSERT_EQ(as_stored.tensors().size(), model.tensors().size());
  bool beyond_bf16 = false;
  for (const TensorView& tensor : model.tensors()) {
    EXPECT_TRUE(same_bytes(*as_stored.find(tensor.name), tensor)) << tensor.name;
    const TensorView* master = optimizer.find("master." + tensor.name);
    ASSERT_NE(master, nullptr);
    EXPECT_TRUE(same_bytes(*fp32.find(tensor.name), *master)) << tensor.name;
    const float first = *static_cast<const float*>(master->data);
    beyond_bf16 = beyond_bf16 || to_float(to_bf16(first)) != first;
  }
  EXPECT_TRUE(beyond_bf16) << "the masters say no more than the weights";
  EXPECT_EQ(show(path("masters")).at("dtypes").as_array(), boost::json::array{"F32"});
  EXPECT_FALSE(show(path("masters")).contains("compute"));
}

TEST_F(CheckpointModelTest, ExportInShardsHoldsTheSameModel) {
  const EndedProcess result = export_to(path("shards"), {"--max-shard-size", "10kB", "--json"});
  EXPECT_EQ(result.status, 0) << result.errors;
  const boost::json::object whole = show(checkpoint_);
  const boost::json::object shards = show(path("shards"));
  EXPECT_GT(shards.at("files").as_array().size(), 2u);
  for (const char* key : {"parameters", "bytes", "layers", "model_type", "rope_theta"}) {
    EXPECT_EQ(shards.at(key), whole.at(key)) << key;
  }
  EXPECT_TRUE(fs::exists(path("shards") / "model.safetensors.index.json"));
}

TEST_F(CheckpointModelTest, MistakesAreNamedAndWriteNothing) {
  fs::create_directory(path("there"));
  write_file_atomically(path("folder.json"), "{");
  struct Mistake {
    std::vector<std::string> arguments;
    std::string said;
  };
  const std::string from = checkpoint_.string(), out = path("out").string();
  const std::vector<Mistake> mistakes = {
      {{"show", "/absent"}, "/absent"},
      {{"show", path("folder.json").string()}, "folder.json"},
      {{"show"}, "DIR is required"},
      {{"export", from}, "--out is required"},
      {{"export", from, "--out", path("there").string()}, "--out = " + path("there").string()},
      {{"export", "/absent", "--out", out}, "/absent"},
      {{"export", from, "--out", out, "--dtype", "fp8"}, "--dtype"},
      {{"export", from, "--out", out, "--max-shard-size", "0"}, "--max-shard-size"},
      {{"export", from, "--out", out, "--max-shard-size", "big"}, "--max-shard-size"},
  };
  for (const Mistake& mistake : mistakes) {
    std::vector<std::string> arguments = mistake.arguments;
    arguments.insert(arguments.begin(), "checkpoint");
    const EndedProcess result = run_gnomon(arguments);
    EXPECT_EQ(result.status, 2) << mistake.said << result.errors;
    EXPECT_THAT(result.errors, AllOf(HasSubstr("gnomon: "), HasSubstr(mistake.said)));
    EXPECT_EQ(std::ranges::count(result.errors, '\n'), 1) << result.errors;
    EXPECT_FALSE(fs::exists(out)) << mistake.said;
  }
  EXPECT_TRUE(fs::is_empty(path("there")));
}

TEST_F(CheckpointModelTest, ADamagedCheckpointIsNotExported) {
  const fs::path weights = checkpoint_ / "model.safetensors";
  std::string bytes = read_file(weights);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(weights, bytes);
  const EndedProcess result = export_to(path("out"));
  EXPECT_NE(result.status, 0);
  EXPECT_THAT(result.errors, HasSubstr("model.safetensors"));
  EXPECT_FALSE(fs::exists(path("out")));
}

}  // namespace
}  // namespace gnomon::cli
