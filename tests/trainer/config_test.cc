#include <fmt/format.h>
#include <gmock/gmock.h>

#include <fstream>

#include "storage/safetensors.h"
#include "tests/trainer/config_fixture.h"
#include "trainer/engine/parameters.h"

namespace gnomon::test {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

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
  EXPECT_TRUE(load(kSmallest).verification.confirms);
  EXPECT_EQ(load(with + "share_max = 0.3\n").verification.share_max, 0.3) << "of confirming";
  const ConfigError alone = error_of(with + "confirm = false\nshare_max = 0.3\n");
  EXPECT_EQ(alone.key(), "verification.share_max");
  EXPECT_THAT(alone.accepted(), HasSubstr("confirm are false"));
  EXPECT_EQ(error_of(with + "inlin = true\n").key(), "verification.inlin");
}

TEST_F(ConfigTest, AShareOfStepsIsComputedTwiceAndWhichIsAFunctionOfSeedAttemptAndStep) {
  const std::string with = kSmallest + std::string("[verification]\nrecompute_share = ");
  EXPECT_EQ(load(kSmallest).verification.recompute_share, 0);
  const auto steps = [&](const char* share, int64_t seed, int64_t attempt) {
    const VerificationConfig config = load(with + share + "\n").verification;
    std::vector<bool> chosen;
    for (int64_t step = 1; step <= 10000; ++step) {
      chosen.push_back(config.recomputes(seed, attempt, step));
    }
    return chosen;
  };
  EXPECT_EQ(std::ranges::count(steps("0", 1, 1), true), 0);
  EXPECT_EQ(std::ranges::count(steps("1", 1, 1), true), 10000);
  const std::vector<bool> some = steps("0.1", 7, 1);
  EXPECT_NEAR(static_cast<double>(std::ranges::count(some, true)), 1000, 150) << "5 deviations";
  EXPECT_EQ(steps("0.1", 7, 1), some);
  EXPECT_NE(steps("0.1", 7, 2), some);
  EXPECT_NE(steps("0.1", 8, 1), some);
  for (const char* share : {"-0.1", "1.01", "nan"}) {
    const ConfigError error = error_of(with + share + "\n");
    EXPECT_EQ(error.key(), "verification.recompute_share");
    EXPECT_EQ(error.line(), 6);
  }
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

TEST_F(ConfigTest, AnOptimizerHasItsOwnBetas) {
  const auto betas = [&](const std::string& optimizer) {
    const OptimizerConfig read =
        load(kSmallest + std::string("[optimizer]\n") + optimizer).engine.optimizer;
    return std::pair(read.beta1, read.beta2);
  };
  EXPECT_EQ(betas("name = \"adamw\"\n"), std::pair(0.9, 0.95));
  EXPECT_EQ(betas("name = \"lion\"\n"), std::pair(0.9, 0.99));
  EXPECT_EQ(betas("name = \"lion\"\nbeta2 = 0.98\n"), std::pair(0.9, 0.98));
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
moments = "bf16"
[model]
layers = 3
width = 48
heads = 6
kv_heads = 3
ffn = 80
vocabulary = 300
context = 64
qkv_bias = true
qk_norm = false
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
first_moment = "bf16"
second_moment = "fp8"
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
  EXPECT_EQ(config.engine.memory, (MemoryChoice{Recompute::kBlock, 256, MomentFormat::kBf16}));
  EXPECT_EQ(config.plan.of_run(), (RunPrecision{"bf16", "fp8", "e5m2", "e4m3:tensor"}));
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

TEST_F(ConfigTest, KeysOfMomentsAndCommunicationStandBeforeThePlansOwnRules) {
  std::ofstream(*directory_ / "low.toml")
      << "[[rule]]\nmatch = \"*\"\nsecond_moment = \"fp8\"\nweight_communication = \"full\"\n";
  const TrainerConfig config = load(
      "[data]\ndir = \"data\"\n[precision]\nplan = \"low.toml\"\n[optimizer]\nfirst_moment = "
      "\"bf16\"\nsecond_moment = \"bf16\"\n[ranks]\nweights = \"e4m3\"\n");
  EXPECT_EQ(config.plan.of_run(), (RunPrecision{"bf16", "fp8", "full", "full"}));
  const std::string smallest = kSmallest;
  EXPECT_EQ(load(smallest + "[ranks]\ngradients = \"e4m3\"\n").plan.of_run().gradients, "e4m3");
  EXPECT_TRUE(load(smallest + "[ranks]\ngradients = \"full\"\n").plan.rules.empty());
}

TEST_F(ConfigTest, AFaultOfWhatThePlanHasNotInFp8IsRefused) {
  for (const auto& [kind, key] : {std::pair{"fp8_second_moment", "optimizer.second_moment"},
                                  std::pair{"wire_scale_shift", "ranks.gradients"}}) {
    const ConfigError error = error_of(fmt::format(
        "{}[[fault]]\nkind = \"{}\"\nstart_step = 7\nlog2_factor = 3\n", kSmallest, kind));
    EXPECT_EQ(error.value(), fmt::format("\"{}\"", kind));
    EXPECT_EQ(error.line(), 6);
    EXPECT_THAT(error.accepted(), HasSubstr(key));
  }
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
       "the FP8 second moments of * go through e4m3 with one scale, off by 2^-4, before they are "
       "stored"},
      {"wire_scale_shift", "log2_factor = 5", "the scales of gradients sent in FP8 are off by 2^5"},
      {"wrong_accumulation", "", "the FP8 GEMMs of * keep 13 bits of a sum and never promote it"},
      {"dropped_k_block", "site = \"lm_head\"\nterms = 16\ngemm = \"fprop\"",
       "the FP8 fprop GEMMs of lm_head leave out terms 0 to 15 of every sum"},
      {"stale_weight", "site = \"lm_head\"\nsteps = 4",
       "the FP8 copy of lm_head's weight is made anew every 4 steps only"},
      {"bit_flip", "site = \"model.norm.weight\"",
       "bit 30 of element 0 of model.norm.weight flips after step 7"},
      {"bit_flip", "site = \"model.norm.weight\"\ntensor = \"gradient\"",
       "bit 30 of element 0 of model.norm.weight's gradient flips in one computation of step 7"},
      {"stuck_bit", "site = \"lm_head\"", "bit 15 of column 0 of lm_head's output is stuck at 1"},
      {"corrupt_batch", "", "the tokens are replaced by random ones"},
      {"learning_rate_spike", "factor = 2.5", "the learning rate is multiplied by 2.5"},
      {"corrupt_batch", "period = 50\nduration = 4",
       "the tokens are replaced by random ones in 4 of every 50 steps"},
      {"scale_shift", "site = \"lm_head\"\nlog2_factor = 6\nsteps = 90",
       "the quantisation scale of lm_head's input is off by 2^6, growing over 90 steps"},
      {"repeated_batch", "", "the batch of the first step is read again and again"},
      {"skipped_batch", "", "the trainer reads the batch of 1 step later"}};
  ASSERT_EQ(std::size(kinds), all_faults().size() + 3) << "three are there twice";
  for (const Kind& kind : kinds) {
    const TrainerConfig config =
        load(fmt::format("{}[optimizer]\nsecond_moment = \"fp8\"\n[ranks]\ngradients = \"e4m3\"\n"
                         "[[fault]]\nkind = \"{}\"\nstart_step = 7\n{}\n",
                         kSmallest, kind.name, kind.keys));
    ASSERT_EQ(config.engine.faults.size(), 1u);
    EXPECT_EQ(fault_kind_name(config.engine.faults[0].kind), kind.name);
    EXPECT_THAT(config.engine.faults[0].describe(), HasSubstr(kind.says));
    EXPECT_THAT(config.engine.faults[0].describe(), HasSubstr("step 7"));
  }
}

}  // namespace
}  // namespace gnomon::test
