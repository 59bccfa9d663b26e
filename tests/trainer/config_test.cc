#include "trainer/config.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "storage/safetensors.h"
#include "tests/support/temporary_directory.h"
#include "tests/trainer/tiny_run.h"
#include "trainer/engine/parameters.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

class ConfigTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new test::TemporaryDirectory();
    gnomon::test::make_tiny_dataset(*directory_ / "data");
  }
  static void TearDownTestSuite() { delete directory_; }

  static fs::path write(const std::string& text) {
    const fs::path path = *directory_ / "run.toml";
    std::ofstream(path) << text;
    return path;
  }
  static TrainerConfig load(const std::string& text, const TrainerOverrides& overrides = {}) {
    return load_trainer_config(write(text).string(), overrides);
  }
  static ConfigError error_of(const std::string& text, const TrainerOverrides& overrides = {}) {
    try {
      load(text, overrides);
    } catch (const ConfigError& error) {
      return error;
    }
    ADD_FAILURE() << "accepted: " << text;
    return ConfigError("", 0, "", "", "");
  }

  static test::TemporaryDirectory* directory_;
};

test::TemporaryDirectory* ConfigTest::directory_ = nullptr;

constexpr const char* kSmallest = "[data]\ndir = \"data\"\n[precision]\nrecipe = \"bf16\"\n";

TEST_F(ConfigTest, AGpuIsWatchedByItsBusId) {
  const std::string run = "[run]\nwatch_gpu = ";
  EXPECT_EQ(load(kSmallest).watch_gpu, "");
  EXPECT_EQ(load(run + "\"0000:C1:00.0\"\n" + kSmallest).watch_gpu, "0000:C1:00.0");
  for (const char* bad : {"\"0\"", "\"\"", "\"0000:C1:00\"", "0"}) {
    const ConfigError error = error_of(run + bad + "\n" + kSmallest);
    EXPECT_EQ(error.key(), "run.watch_gpu") << bad;
    EXPECT_EQ(error.line(), 2);
  }
}

TEST_F(ConfigTest, InlineVerificationIsAskedForAndHasAShare) {
  const std::string with = std::string(kSmallest) + "[verification]\n";
  EXPECT_FALSE(load(kSmallest).verification.by_trainer);
  EXPECT_TRUE(load(with + "inline = true\n").verification.by_trainer);
  EXPECT_EQ(load(with + "inline = true\nshare_max = 0.3\n").verification.share_max, 0.3);
  for (const char* share : {"0.0", "1.01", "-1", "nan"}) {
    const ConfigError error = error_of(with + "inline = true\nshare_max = " + share + "\n");
    EXPECT_EQ(error.key(), "verification.share_max");
    EXPECT_EQ(error.line(), 7);
  }
  const ConfigError alone = error_of(with + "share_max = 0.3\n");
  EXPECT_EQ(alone.key(), "verification.share_max");
  EXPECT_THAT(alone.accepted(), HasSubstr("inline is not true"));
  EXPECT_EQ(error_of(with + "inlin = true\n").key(), "verification.inlin");
}

TEST_F(ConfigTest, Fp32ComputingTakesNoFp8Plan) {
  const std::string model = "[model]\ncompute = \"fp32\"\n";
  EXPECT_EQ(load(kSmallest).engine.compute, Compute::kBf16);
  EXPECT_EQ(load(kSmallest + model).engine.compute, Compute::kFp32);
  const ConfigError error =
      error_of("[data]\ndir = \"data\"\n[precision]\nrecipe = \"current\"\n" + model);
  EXPECT_EQ(error.key(), "model.compute");
  EXPECT_EQ(error.line(), 6);
  EXPECT_THAT(error_of(kSmallest + std::string("[model]\ncompute = \"fp16\"\n")).accepted(),
              HasSubstr("fp32"));
}

TEST_F(ConfigTest, StatisticsAreOffUntilTheFileSaysEveryHowManySteps) {
  EXPECT_EQ(load(kSmallest).statistics.every, 0);
  EXPECT_EQ(load(kSmallest + std::string("[statistics]\nevery = 0\n")).statistics.every, 0);
  const StatisticsConfig all =
      load(kSmallest + std::string("[statistics]\nevery = 100\n")).statistics;
  EXPECT_EQ(all.every, 100);
  EXPECT_EQ(all.match, std::vector<std::string>{"*"});
  EXPECT_EQ(all.tensors, (std::vector<std::string>{"input", "weight", "gradient", "output"}));
  EXPECT_TRUE(all.what_if.empty());
  const StatisticsConfig some =
      load(kSmallest + std::string("[statistics]\nevery = 7\nmatch = [\"*.down_proj\", "
                                   "\"model.layers.{0,last}.*\"]\ntensors = [\"gradient\"]\n"
                                   "what_if = [\"mx:e2m1\", \"current:e4m3/e4m3\"]\n"
                                   "sites_max = 30\n"))
          .statistics;
  EXPECT_EQ(some.match, (std::vector<std::string>{"*.down_proj", "model.layers.{0,last}.*"}));
  EXPECT_EQ(some.tensors, std::vector<std::string>{"gradient"});
  EXPECT_EQ(some.what_if, (std::vector<std::string>{"mx:e2m1", "current:e4m3/e4m3"}));
  EXPECT_EQ(some.sites_max, 30);
}

TEST_F(ConfigTest, TheSmallestFileGivesUsableDefaults) {
  const TrainerConfig config = load(kSmallest);
  EXPECT_EQ(config.name, "run");
  EXPECT_EQ(config.dir, *directory_ / "runs/run-1");
  EXPECT_EQ(config.engine.data, (*directory_ / "data").string());
  EXPECT_EQ(config.engine.model.vocabulary, 257) << "the dataset's";
  EXPECT_EQ(config.engine.optimizer.total_steps, config.steps);
  EXPECT_EQ(config.engine.shard, Sharding::kOptimizer);
  EXPECT_TRUE(config.controller.url.empty());
  EXPECT_TRUE(config.plan.rules.empty());
}

TEST_F(ConfigTest, ReadsEveryKey) {
  const TrainerConfig config = load(R"(
[run]
name = "demo.a-b_c"
job_id = "36199_0"
dir = "/somewhere/x"
seed = 5
steps = 77
threads = 2
device = "cuda"
[memory]
recompute = "block"
head_rows = 256
[model]
layers = 3
width = 48
heads = 6
kv_heads = 3
ffn = 80
vocabulary = 300
context = 64
qkv_bias = true
tie_embeddings = false
rope_theta = 5000
norm_eps = 1e-6
init_std = 0.03
[data]
dir = "data"
[eval]
sequences = 9
[batch]
sequences = 3
tokens = 64
accumulation = 2
[optimizer]
learning_rate = 2e-3
min_ratio = 0.2
warmup_steps = 7
total_steps = 100
beta1 = 0.8
beta2 = 0.9
eps = 1e-9
weight_decay = 0.2
clip = 0.5
[ranks]
gradients = "e5m2"
weights = "e4m3:tensor"
shard = "weights"
[precision]
recipe = "delayed"
required = true
[checkpoint]
every = 11
keep_last = 4
[controller]
url = "http://127.0.0.1:7717"
on_loss = "pause"
grace_seconds = 2.5
flush_seconds = 3
spool_bytes_max = 100000
[[fault]]
kind = "scale_shift"
site = "model.layers.1.mlp.down_proj"
tensor = "weight"
log2_factor = -3
start_step = 10
end_step = 20
[[fault]]
kind = "bit_flip"
site = "model.norm.weight"
start_step = 5
element = 3
bit = 30
)");
  EXPECT_EQ(config.name, "demo.a-b_c");
  EXPECT_EQ(config.job_id, "36199_0");
  EXPECT_EQ(config.dir, "/somewhere/x");
  EXPECT_EQ(config.engine.seed, 5);
  EXPECT_EQ(config.steps, 77);
  EXPECT_EQ(config.engine.threads, 2);
  EXPECT_EQ(config.engine.device, Device::kCuda);
  EXPECT_EQ(config.engine.memory, (MemoryChoice{Recompute::kBlock, 256}));
  EXPECT_EQ(wire_format_name(config.engine.gradient_wire), "e5m2");
  EXPECT_EQ(wire_format_name(config.engine.weight_wire), "e4m3:tensor");
  EXPECT_EQ(config.engine.shard, Sharding::kWeights);
  EXPECT_TRUE(config.plan.required);
  const ModelConfig model{.layers = 3,
                          .width = 48,
                          .heads = 6,
                          .kv_heads = 3,
                          .ffn = 80,
                          .vocabulary = 300,
                          .context = 64,
                          .qkv_bias = true,
                          .tie_embeddings = false,
                          .rope_theta = 5000,
                          .norm_eps = 1e-6,
                          .init_std = 0.03};
  EXPECT_EQ(config.engine.model, model);
  EXPECT_EQ(config.engine.batch, (BatchConfig{3, 64, 2}));
  EXPECT_EQ(config.engine.optimizer,
            (OptimizerConfig{2e-3, 0.2, 7, 100, 0.8, 0.9, 1e-9, 0.2, 0.5}));
  EXPECT_EQ(config.engine.heldout_sequences, 9);
  EXPECT_EQ(config.plan.resolve("lm_head", 3).recipes(), "delayed");
  EXPECT_EQ(config.checkpoint_every, 11);
  EXPECT_EQ(config.keep_last, 4);
  EXPECT_EQ(config.controller.url, "http://127.0.0.1:7717");
  EXPECT_EQ(config.on_loss, OnLoss::kPause);
  EXPECT_EQ(config.grace_seconds, 2.5);
  EXPECT_EQ(config.flush_seconds, 3);
  EXPECT_EQ(config.spool_bytes_max, 100000);
  ASSERT_EQ(config.engine.faults.size(), 2u);
  EXPECT_EQ(config.engine.faults[0].kind, FaultKind::kScaleShift);
  EXPECT_EQ(config.engine.faults[0].tensor, "weight");
  EXPECT_EQ(config.engine.faults[0].log2_factor, -3);
  EXPECT_EQ(config.engine.faults[0].end_step, 20);
  EXPECT_EQ(config.engine.faults[1].element, 3);
}

TEST_F(ConfigTest, ADeviceWithoutFp8RunsBf16UnlessFp8IsRequired) {
  const std::string lack = "a device of old has none";
  const std::string data = "[data]\ndir = \"data\"\n[precision]\n";
  const auto gives_way = [&](const std::string& precision) {
    return load(data + precision).check_device(lack);
  };
  EXPECT_TRUE(gives_way("recipe = \"current\"\n"));
  EXPECT_FALSE(gives_way("recipe = \"bf16\"\nrequired = true\n"));
  EXPECT_FALSE(load(data + "recipe = \"current\"\n").check_device(""));
  try {
    gives_way("recipe = \"current\"\nrequired = true\n");
    FAIL() << "accepted";
  } catch (const ConfigError& error) {
    EXPECT_EQ(error.key(), "precision.required");
    EXPECT_GT(error.line(), 0);
    EXPECT_NE(error.accepted().find(lack), std::string::npos) << error.what();
  }
}

// A model directory without anything in it but what its header says.
void write_model(const fs::path& directory, const ModelConfig& model) {
  fs::create_directories(directory);
  std::ofstream(directory / "config.json") << model.to_hf_json("float32");
  std::vector<TensorView> tensors;
  const std::vector<float> zeros(static_cast<size_t>(model.parameters()));
  const ParameterLayout layout(model);
  for (const Parameter& parameter : layout.all()) {
    tensors.push_back({parameter.name, "F32", parameter.shape, zeros.data()});
  }
  write_safetensors(directory / "model.safetensors", tensors);
}

TEST_F(ConfigTest, ModelFromADirectoryHasItsShape) {
  const ModelConfig model{.layers = 3,
                          .width = 48,
                          .heads = 6,
                          .vocabulary = 300,
                          .qkv_bias = true,
                          .tie_embeddings = false,
                          .rope_theta = 1e6};
  write_model(*directory_ / "hf", model);
  const TrainerConfig config =
      load(std::string(kSmallest) + "[model]\nfrom = \"hf\"\ncompute = \"fp32\"\n");
  EXPECT_EQ(config.engine.model, model);
  EXPECT_EQ(config.engine.from, *directory_ / "hf");
  EXPECT_EQ(config.engine.compute, Compute::kFp32);
  EXPECT_TRUE(load(kSmallest).engine.from.empty());
}

TEST_F(ConfigTest, ModelFromADirectoryTakesNoShapeBesideItAndNoWrongDirectory) {
  write_model(*directory_ / "hf", ModelConfig{.vocabulary = 300});
  const std::string from = std::string(kSmallest) + "[model]\nfrom = \"hf\"\n";
  const ConfigError beside = error_of(from + "layers = 4\n");
  EXPECT_EQ(beside.line(), 7);
  EXPECT_THAT(beside.accepted(), HasSubstr("model.from"));
  const ConfigError absent = error_of(std::string(kSmallest) + "[model]\nfrom = \"nothing\"\n");
  EXPECT_EQ(absent.line(), 6);
  EXPECT_THAT(absent.accepted(), HasSubstr("config.json"));
  // The dataset's vocabulary is looked at with the engine; the line is that of `from`.
  const ConfigError small =
      load(from).located(ConfigError("model", 0, "vocabulary", "61", "at least 257"));
  EXPECT_EQ(small.line(), 6);
  fs::remove(*directory_ / "hf/model.safetensors");
  EXPECT_THROW(load(from), FormatError);
}

TEST_F(ConfigTest, TheCommandLineWinsAndStepsLeaveTheScheduleAlone) {
  TrainerOverrides overrides;
  overrides.dir = "/elsewhere";
  overrides.controller = "none";
  overrides.steps = 5;
  overrides.threads = 3;
  const TrainerConfig config =
      load(std::string(kSmallest) + "[controller]\nurl = \"http://h:1\"\n[run]\nsteps = 50\n",
           overrides);
  EXPECT_EQ(config.dir, "/elsewhere");
  EXPECT_TRUE(config.controller.url.empty());
  EXPECT_EQ(config.steps, 5);
  EXPECT_EQ(config.engine.threads, 3);
  EXPECT_EQ(config.engine.optimizer.total_steps, 50);
}

TEST_F(ConfigTest, AJobOfTheCommandLineNamesTheDirectoryToo) {
  TrainerOverrides overrides;
  overrides.job_id = "36199_0";
  const TrainerConfig config =
      load(std::string(kSmallest) + "[run]\nname = \"lr\"\njob_id = \"7\"\n", overrides);
  EXPECT_EQ(config.job_id, "36199_0");
  EXPECT_EQ(config.dir.filename(), "lr-36199_0");
  overrides.job_id = "a/b";
  const ConfigError wrong = error_of(kSmallest, overrides);
  EXPECT_EQ(wrong.key(), "--job-id");
  EXPECT_THAT(wrong.accepted(), HasSubstr("letters, digits"));
}

TEST_F(ConfigTest, AFileInTheCurrentDirectoryNeedsNoMoreThanItsName) {
  const fs::path file = write(std::string(kSmallest) + "[controller]\nurl = \"http://h:1\"\n");
  const fs::path before = fs::current_path();
  fs::current_path(file.parent_path());
  const TrainerConfig config = load_trainer_config(file.filename().string(), {});
  fs::current_path(before);
  EXPECT_EQ(config.dir, file.parent_path() / "runs/run-1");
}

TEST_F(ConfigTest, APlanFileStandsBesideTheConfiguration) {
  std::ofstream(*directory_ / "plan.toml")
      << "version = 3\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n";
  const TrainerConfig config = load("[data]\ndir = \"data\"\n[precision]\nplan = \"plan.toml\"\n");
  EXPECT_EQ(config.plan.version, 3);
  EXPECT_TRUE(config.plan.resolve("lm_head", 4).any_fp8());
}

TEST_F(ConfigTest, AMistakeInThePlanFileNamesThePlanFile) {
  std::ofstream(*directory_ / "bad.toml") << "[[rule]]\nmatch = \"*\"\ngemms = \"fp7\"\n";
  const ConfigError error = error_of("[data]\ndir = \"data\"\n[precision]\nplan = \"bad.toml\"\n");
  EXPECT_EQ(error.file(), (*directory_ / "bad.toml").string());
  EXPECT_EQ(error.line(), 3);
  std::ofstream(*directory_ / "nowhere.toml")
      << "[[rule]]\nmatch = \"model.layers.9.*\"\ngemms = \"fp8\"\n";
  const ConfigError unmatched =
      error_of("[data]\ndir = \"data\"\n[precision]\nplan = \"nowhere.toml\"\n");
  EXPECT_EQ(unmatched.file(), (*directory_ / "nowhere.toml").string());
  EXPECT_EQ(unmatched.line(), 2);
}

// Before an engine, and so any memory, is there.
TEST_F(ConfigTest, ShapesThatARecipeCannotTileAreRefusedWithTheRecipesLine) {
  for (const auto& [text, line, value] :
       {std::tuple{
            "[model]\nwidth = 72\nheads = 4\nkv_heads = 2\n[precision]\nrecipe = \"block\"\n", 8,
            "\"block\""},
        std::tuple{"[batch]\ntokens = 24\nsequences = 1\n[precision]\nrecipe = \"rowwise\"\n", 7,
                   "\"rowwise\""}}) {
    const ConfigError error = error_of(std::string("[data]\ndir = \"data\"\n") + text);
    EXPECT_EQ(error.file(), (*directory_ / "run.toml").string());
    EXPECT_EQ(error.line(), line) << error.what();
    EXPECT_EQ(error.key(), "precision.recipe");
    EXPECT_EQ(error.value(), value);
    EXPECT_THAT(error.accepted(), HasSubstr("allow_ragged_tiles")) << error.what();
  }
  std::ofstream(*directory_ / "mx.toml")
      << "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\n\n[[rule]]\nmatch = \"lm_head\"\nrecipe = "
         "\"mx\"\n";
  const ConfigError error = error_of(
      "[data]\ndir = \"data\"\n[model]\nvocabulary = 272\n[precision]\nplan = \"mx.toml\"\n");
  EXPECT_EQ(error.file(), (*directory_ / "mx.toml").string());
  EXPECT_EQ(error.line(), 6);
  EXPECT_THAT(error.accepted(), HasSubstr("the dgrad of lm_head sums over 272"));
}

struct Bad {
  const char* text;  // behind kSmallest, whose last line is 4
  int line;
  const char* key;
  const char* accepted;
};

TEST_F(ConfigTest, EveryMistakeNamesFileLineKeyAndWhatIsAccepted) {
  const std::vector<Bad> cases = {
      {"[run]\nsteps = 0\n", 6, "run.steps", "from 1 to"},
      {"[run]\nsteps = 1.5\n", 6, "run.steps", "an integer"},
      {"[run]\nstep = 5\n", 6, "run.step",
       "name, job_id, dir, seed, steps, threads, device, watch_gpu"},
      {"[run]\ndevice = \"gpu\"\n", 6, "run.device", "\"cpu\", \"cuda\""},
      {"[memory]\nrecompute = \"all\"\n", 6, "memory.recompute", "\"block\""},
      {"[ranks]\nshard = \"gradients\"\n", 6, "ranks.shard", "\"optimizer\", \"weights\""},
      {"[memory]\nhead_rows = 100\n", 6, "memory.head_rows", "multiple of 128"},
      {"[run]\nname = \"a/b\"\n", 6, "run.name", "letters"},
      {"[run]\nname = \"\"\n", 6, "run.name", "letters"},
      {"[run]\njob_id = 5\n", 6, "run.job_id", "string"},
      {"[run]\nseed = -1\n", 6, "run.seed", "at least 0"},
      {"[run]\nthreads = 2000\n", 6, "run.threads", "1 to 1024"},
      {"[trainer]\n", 5, "trainer", "run"},
      {"[model]\nlayers = 2\nwidth = 30\nheads = 4\nkv_heads = 2\n", 8, "model.heads",
       "divisor of width"},
      {"[model]\nheads = 4\nkv_heads = 3\n", 7, "model.kv_heads", "divisor of heads"},
      {"[model]\nkv_heads = 9\n", 6, "model.kv_heads", "1 to 4"},
      {"[model]\nqkv_bias = 1\n", 6, "model.qkv_bias", "true or false"},
      {"[model]\nrope_theta = nan\n", 6, "model.rope_theta", "a number"},
      {"[model]\nhidden = 3\n", 6, "model.hidden", "width"},
      {"[batch]\ntokens = 2048\n", 6, "batch.tokens", "model.context = 1024"},
      {"[batch]\nsequences = 0\n", 6, "batch.sequences", "1 to"},
      {"[optimizer]\nbeta1 = 1.0\n", 6, "optimizer.beta1", "0.999999"},
      {"[optimizer]\nlearning_rate = \"1e-3\"\n", 6, "optimizer.learning_rate", "a number"},
      {"[checkpoint]\nevery = 0\n", 6, "checkpoint.every", "from 1 to"},
      {"[checkpoint]\nkeep_last = 0\n", 6, "checkpoint.keep_last", "1 to"},
      {"[controller]\nurl = \"localhost:7717\"\n", 6, "controller.url", "or \"none\""},
      {"[controller]\non_loss = \"stop\"\n", 6, "controller.on_loss",
       "\"continue\", \"bf16\", \"pause\""},
      {"[controller]\nspool_bytes_max = 10\n", 6, "controller.spool_bytes_max", "65536"},
      {"[statistics]\nevery = -1\n", 6, "statistics.every", "from 0 to"},
      {"[statistics]\nevery = \"100\"\n", 6, "statistics.every", "an integer"},
      {"[statistics]\nmatch = [\"lm_head\"]\n", 6, "statistics.match", "statistics.every"},
      {"[statistics]\nwhat_if = [\"mx\"]\n", 6, "statistics.what_if", "statistics.every"},
      {"[statistics]\nevery = 5\nmatch = [\"*\", \"model.layer.*\"]\n", 7, "statistics.match",
       "model.layers.0.self_attn.q_proj to lm_head"},
      {"[statistics]\nevery = 5\nmatch = [\"{\"]\n", 7, "statistics.match",
       "lm_head (here an opening brace"},
      {"[statistics]\nevery = 5\nmatch = \"lm_head\"\n", 7, "statistics.match",
       "an array of strings"},
      {"[statistics]\nevery = 5\n\ntensors = [\"input\", \"activations\"]\n", 8,
       "statistics.tensors", "input, weight, gradient, output"},
      {"[statistics]\nevery = 5\nwhat_if = [\"block\", \"blocks\"]\n", 7, "statistics.what_if",
       "one of current, delayed, rowwise"},
      {"[statistics]\nevery = 5\nwhat_if = [\"mx:e9m9\"]\n", 7, "statistics.what_if", "e2m1"},
      {"[statistics]\nevery = 5\nsites_max = 3\n", 7, "statistics.sites_max", "at least 29"},
      {"[statistics]\nevery = 5\nsites_max = 0\n", 7, "statistics.sites_max", "1 to"},
      {"[statistics]\nevery = 5\nfrequency = 5\n", 7, "statistics.frequency",
       "every, match, tensors, what_if, sites_max"},
      {"[model]\ncompute = \"fp32\"\n[statistics]\nevery = 5\n", 8, "statistics.every",
       "model.compute = \"fp32\""},
      {"[eval]\nsequences = 0\n", 6, "eval.sequences", "1 to"},
      {"[eval]\nsequences = 1000000\n", 6, "eval.sequences", "tokens, and a sequence has 256"},
      {"[[fault]]\nkind = \"corrupt_batch\"\nsite = \"lm_head\"\nstart_step = 3\n", 7,
       "fault[0].site", "\"corrupt_batch\" has no site"},
      {"[[fault]]\nkind = \"bit_flip\"\nsite = \"x\"\nstart_step = 3\nend_step = 9\n", 9,
       "fault[0].end_step", "has no end_step"},
      {"[[fault]]\nkind = \"frozen_amax\"\nsite = \"lm_head\"\nstart_step = 3\nbit = 3\n", 9,
       "fault[0].bit", "has no bit"},
      {"[[fault]]\nstart_step = 3\n", 5, "fault[0].kind", "frozen_amax"},
      {"[[fault]]\nkind = \"cosmic\"\n", 6, "fault[0].kind", "bit_flip"},
      {"[[fault]]\nkind = \"corrupt_batch\"\n", 5, "fault[0].start_step", "first step"},
      {"[[fault]]\nkind = \"corrupt_batch\"\nstart_step = 5\nend_step = 5\n", 8,
       "fault[0].end_step", "after start_step"},
      {"[[fault]]\nkind = \"scale_shift\"\nsite = \"mlp\"\nlog2_factor = 2\nstart_step = 5\n", 7,
       "fault[0].site", "model.layers.0.self_attn.q_proj"},
      {"[[fault]]\nkind = \"scale_shift\"\nsite = \"lm_head\"\nstart_step = 5\n", 5,
       "fault[0].log2_factor", "not 0"},
      {"[[fault]]\nkind = \"bit_flip\"\nsite = \"x\"\nstart_step = 5\n", 7, "fault[0].site",
       "a parameter's name"},
      {"[[fault]]\nkind = \"bit_flip\"\nsite = \"model.norm.weight\"\nstart_step = 5\nbit = 32\n",
       9, "fault[0].bit", "0 to 31"},
      {"[[fault]]\nkind = \"corrupt_batch\"\nstart_step = 5\nsteps = 3\n", 8, "fault[0].steps",
       "\"corrupt_batch\" has no steps"},
      {"[[fault]]\nkind = \"corrupt_batch\"\nstart_step = 5\nseverity = 3\n", 8,
       "fault[0].severity", "start_step"},
      {"[[fault]]\nkind = \"e5m2_everywhere\"\nsite = \"*.mlp\"\nstart_step = 5\n", 7,
       "fault[0].site", "a glob that matches"},
      {"[[fault]]\nkind = \"outlier_channel\"\nsite = \"lm_head\"\nstart_step = 5\n", 7,
       "fault[0].site", "a down projection"},
      {"[[fault]]\nkind = \"reduced_mantissa\"\nstart_step = 5\n", 5, "fault[0].format",
       "e8m3, e8m4"},
      {"[[fault]]\nkind = \"learning_rate_spike\"\nstart_step = 5\nfactor = 1\n", 8,
       "fault[0].factor", "not 1"},
      {"[[fault]]\nkind = \"dropped_k_block\"\nsite = \"lm_head\"\ngemm = \"fprop\"\n"
       "start_step = 5\nelement = 100\nterms = 64\n",
       11, "fault[0].terms", "1 to 28"},
  };
  for (const Bad& bad : cases) {
    const ConfigError error = error_of(std::string(kSmallest) + bad.text);
    EXPECT_EQ(error.file(), (*directory_ / "run.toml").string()) << bad.text;
    EXPECT_EQ(error.line(), bad.line) << error.what();
    EXPECT_EQ(error.key(), bad.key) << error.what();
    EXPECT_THAT(error.accepted(), HasSubstr(bad.accepted)) << error.what();
  }
}

TEST_F(ConfigTest, PrecisionMustBeSaidOnce) {
  EXPECT_THAT(error_of("[data]\ndir = \"data\"\n[precision]\n").accepted(),
              HasSubstr("either plan"));
  const ConfigError both =
      error_of("[data]\ndir = \"data\"\n[precision]\nrecipe = \"bf16\"\nplan = \"p\"\n");
  EXPECT_EQ(both.line(), 5);
  EXPECT_EQ(error_of("[data]\ndir = \"data\"\n[precision]\nrecipe = \"mx8\"\n").key(),
            "precision.recipe");
  EXPECT_EQ(error_of("[data]\ndir = \"data\"\n[precision]\nplan = \"absent.toml\"\n").key(),
            "precision.plan");
}

TEST_F(ConfigTest, DataMustBeADataset) {
  const ConfigError error = error_of("[precision]\nrecipe = \"bf16\"\n[data]\ndir = \"nowhere\"\n");
  EXPECT_EQ(error.line(), 4);
  EXPECT_THAT(error.accepted(), HasSubstr("gnomon data prepare"));
  EXPECT_EQ(error_of("[precision]\nrecipe = \"bf16\"\n").key(), "data.dir");
}

TEST_F(ConfigTest, BadCommandLineValuesAreNamedAsSuch) {
  TrainerOverrides steps;
  steps.steps = 0;
  EXPECT_EQ(error_of(kSmallest, steps).key(), "--steps");
  TrainerOverrides url;
  url.controller = "ftp://x";
  EXPECT_EQ(error_of(kSmallest, url).key(), "--controller");
  TrainerOverrides threads;
  threads.threads = -1;
  EXPECT_EQ(error_of(kSmallest, threads).key(), "--threads");
}

TEST_F(ConfigTest, EveryKindOfFaultIsReadWithItsDefaults) {
  struct Kind {
    const char* name;
    const char* keys;
    const char* says;
  };
  const Kind kinds[] = {
      {"frozen_amax", "site = \"lm_head\"", "the amax history of lm_head's input stops updating"},
      {"scale_shift", "site = \"lm_head\"\nlog2_factor = 3",
       "the quantisation scale of lm_head's input is off by 2^3"},
      {"outlier_channel", "site = \"model.layers.0.mlp.down_proj\"\nlog2_factor = 9\nelement = 2",
       "channel 2 of model.layers.0.mlp.down_proj's input grows to 2^9 times its size over 1 "
       "steps"},
      {"gradient_underflow", "", "the gradients of * are in E4M3, their scale off by 2^0"},
      {"reduced_mantissa", "format = \"e8m3\"", "the FP8 GEMMs of * run in e8m3"},
      {"e5m2_everywhere", "site = \"*.mlp.*\"",
       "the FP8 GEMMs of *.mlp.* have every operand in E5M2"},
      {"coarse_recipe", "site = \"lm_head\"",
       "the FP8 GEMMs of lm_head run in e4m3 with one scale for each tensor, off by 2^0"},
      {"fp8_second_moment", "log2_factor = -4",
       "the second moments of * are stored in e4m3 with one scale, off by 2^-4"},
      {"wrong_accumulation", "", "the FP8 GEMMs of * keep 13 bits of a sum and never promote it"},
      {"dropped_k_block", "site = \"lm_head\"\nterms = 16\ngemm = \"fprop\"",
       "the FP8 fprop GEMMs of lm_head leave out terms 0 to 15 of every sum"},
      {"stale_weight", "site = \"lm_head\"\nsteps = 4",
       "the FP8 copy of lm_head's weight is made anew every 4 steps only"},
      {"bit_flip", "site = \"model.norm.weight\"",
       "bit 30 of element 0 of model.norm.weight flips after step 7"},
      {"stuck_bit", "site = \"lm_head\"", "bit 15 of column 0 of lm_head's output is stuck at 1"},
      {"corrupt_batch", "", "the tokens are replaced by random ones"},
      {"learning_rate_spike", "factor = 2.5", "the learning rate is multiplied by 2.5"},
      {"skipped_batch", "", "the trainer reads the batch of 1 step later"}};
  ASSERT_EQ(std::size(kinds), all_faults().size());
  for (const Kind& kind : kinds) {
    const TrainerConfig config = load(fmt::format(
        "{}[[fault]]\nkind = \"{}\"\nstart_step = 7\n{}\n", kSmallest, kind.name, kind.keys));
    ASSERT_EQ(config.engine.faults.size(), 1u);
    EXPECT_EQ(fault_kind_name(config.engine.faults[0].kind), kind.name);
    EXPECT_THAT(config.engine.faults[0].describe(), HasSubstr(kind.says));
    EXPECT_THAT(config.engine.faults[0].describe(), HasSubstr("step 7"));
  }
}

TEST_F(ConfigTest, AnErrorOfTheEngineGetsTheFilesLine) {
  const TrainerConfig config = load(std::string(kSmallest) +
                                    "[run]\nthreads = 1\n[[fault]]\nkind = \"bit_flip\"\n"
                                    "start_step = 1\nsite = \"model.norm.weight\"\n"
                                    "[ranks]\nshard = \"weights\"\n");
  const ConfigError fault =
      config.located(ConfigError("fault", 0, "site", "model.norm.weight", "a parameter"));
  EXPECT_EQ(fault.line(), 10);
  EXPECT_EQ(config.located(ConfigError("engine", 0, "threads", "0", "1 to 1024")).line(), 6);
  const ConfigError shard =
      config.located(ConfigError("ranks", 0, "shard", "weights", "\"optimizer\""));
  EXPECT_EQ(shard.key(), "ranks.shard");
  EXPECT_EQ(shard.line(), 12);
  EXPECT_EQ(config.located(ConfigError("model", 0, "vocabulary", "2", "257")).key(),
            "model.vocabulary");
}

}  // namespace
}  // namespace gnomon
