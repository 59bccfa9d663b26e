// What is refused in a run's TOML and on the command line, and by which words.
#include <gmock/gmock.h>

#include <fstream>
#include <tuple>
#include <vector>

#include "tests/trainer/config_fixture.h"

namespace gnomon::test {
namespace {

using ::testing::HasSubstr;

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

// Lists of that many layers, or a row for each of that many tokens, would fill the memory.
TEST_F(ConfigTest, AShapeThatCannotBeIsRefusedBeforeAnythingIsMadeOfIt) {
  for (const char* rest : {"[[fault]]\nkind = \"bit_flip\"\nstart_step = 1\n"
                           "site = \"model.layers.1999999999.mlp.up_proj.weight\"\n",
                           "[statistics]\nevery = 1\n", "[run]\nsteps = 3\n"}) {
    const ConfigError layers =
        error_of(std::string(kSmallest) + "[model]\nlayers = 2000000000\n" + rest);
    EXPECT_EQ(layers.key(), "model.layers") << rest;
    EXPECT_EQ(layers.line(), 6);
    EXPECT_THAT(layers.accepted(), HasSubstr("1 to 512"));
    EXPECT_EQ(error_of(std::string(kSmallest) + "[model]\nvocabulary = 2147483647\n" + rest).key(),
              "model.vocabulary");
  }
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
      {"[model]\nqk_norm = 1\n", 6, "model.qk_norm", "true or false"},
      {"[model]\nrope_theta = nan\n", 6, "model.rope_theta", "a number"},
      {"[model]\nhidden = 3\n", 6, "model.hidden", "width"},
      {"[batch]\ntokens = 2048\n", 6, "batch.tokens", "model.context = 1024"},
      {"[batch]\nsequences = 0\n", 6, "batch.sequences", "1 to"},
      {"[optimizer]\nbeta1 = 1.0\n", 6, "optimizer.beta1", "0.999999"},
      {"[optimizer]\nname = \"sgd\"\n", 6, "optimizer.name", "\"adamw\", \"lion\""},
      {"[optimizer]\nname = \"lion\"\neps = 1e-8\n", 7, "optimizer.eps", "\"lion\" has no eps"},
      {"[optimizer]\nname = \"lion\"\nsecond_moment = \"fp8\"\n", 7, "optimizer.second_moment",
       "\"lion\" has no second_moment"},
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
      {"[[fault]]\nkind = \"corrupt_batch\"\n", 5, "fault[0].start_step", "First step"},
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
      {"[[fault]]\nkind = \"bit_flip\"\nsite = \"model.norm.weight\"\nstart_step = 5\n"
       "tensor = \"input\"\n",
       9, "fault[0].tensor", "weight, gradient"},
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

TEST_F(ConfigTest, ATokenInThePlaceOfItsFilesNameIsNotShown) {
  const ConfigError error = error_of(std::string(kSmallest) + "[controller]\ntoken = \"SECRET\"\n");
  EXPECT_EQ(error.key(), "controller.token");
  EXPECT_THAT(error.accepted(), HasSubstr("token_file"));
  EXPECT_THAT(error.what(), Not(HasSubstr("SECRET")));
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
}  // namespace gnomon::test
