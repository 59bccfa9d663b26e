// Analyses by site: against losses measured with FP8 switched on, against gradients taken with one
// GEMM in FP8, and against faults at known sites.
#include "trainer/engine/site_scores.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/philox.h"
#include "tests/engine/engine_fixture.h"
#include "trainer/engine/engine.h"
#include "trainer/engine/synthetic_data.h"
#include "trainer/replay.h"

namespace gnomon::test {
namespace {

constexpr int32_t kVocabulary = 64;
const std::string kUp = "model.layers.0.mlp.up_proj";
const std::string kQ = "model.layers.1.self_attn.q_proj";

// Half of the tokens follow from the one before, most others from the one before that.
std::vector<uint32_t> text(uint64_t key, int64_t count) {
  std::vector<uint32_t> tokens = uniform_tokens(key, kVocabulary, count);
  for (size_t i = 2; i < tokens.size(); ++i) {
    const uint32_t way = philox(key, 8, i)[0] % 8;
    if (way < 4) tokens[i] = (tokens[i - 1] * 5 + 3) % kVocabulary;
    if (way >= 4 && way < 7) tokens[i] = (tokens[i - 2] * 11 + 7) % kVocabulary;
  }
  return tokens;
}

EngineConfig chained_text_engine(const std::filesystem::path& directory) {
  EngineConfig config;
  config.model = small_model();
  config.model.layers = 3;
  config.model.width = 48;
  config.model.ffn = 128;
  config.batch = {.sequences = 8, .tokens = 32, .accumulation = 2};
  config.optimizer.learning_rate = 4e-3;
  config.optimizer.warmup_steps = 10;
  config.optimizer.total_steps = 400;
  config.heldout_sequences = 60;  // of 8: the last part is a smaller one
  config.data = directory / "data";
  write_token_dataset(config.data, {text(1, 60000)}, text(4, 8100), kVocabulary);
  return config;
}

PrecisionPlan plan_of(const std::string& rules) { return PrecisionPlan::parse(rules); }

// A model that has learned something, at a checkpoint, in FP8 with scales of the tensor at hand.
class SiteScores : public testing::Test {
 protected:
  // Trained when it is first asked for.
  static const std::filesystem::path& checkpoint(int64_t seed) {
    std::filesystem::path& path = checkpoints[static_cast<size_t>(seed - 1)];
    if (!path.empty()) return path;
    EngineConfig config = chained_text_engine(directory.path() / std::to_string(seed));
    config.seed = seed;
    Engine engine(config);
    engine.set_plan(PrecisionPlan::fp8(Recipe::kCurrent));
    engine.initialize();
    train_hashes(engine, 160);
    return path =
               write_checkpoint(engine, directory.path() / ("checkpoints" + std::to_string(seed)));
  }

  static std::unique_ptr<Engine> load(int64_t seed, const std::vector<Fault>& faults = {}) {
    EngineConfig config = read_engine_config(checkpoint(seed));
    config.faults = faults;
    auto engine = std::make_unique<Engine>(config, EngineRole::kReplay);
    engine->load(checkpoint(seed));
    return engine;
  }
  static std::vector<SiteScoreRow> scores(Engine& engine) {
    return engine.scores(engine.plan(), engine.step() + 1);
  }

  // In how many of the seeds no site has a larger score than the one with the fault.
  static int64_t first_by(double SiteScoreRow::*member, const Fault& fault) {
    int64_t first = 0;
    for (int64_t seed = 1; seed <= kSeeds; ++seed) {
      auto engine = load(seed, {fault});
      const std::vector<SiteScoreRow> rows = scores(*engine);
      const double own = (*std::ranges::find(rows, fault.site, &SiteScoreRow::site)).*member;
      first +=
          std::ranges::none_of(rows, [&](const SiteScoreRow& row) { return row.*member > own; });
    }
    return first;
  }

  static constexpr int64_t kSeeds = 4, kManySeeds = 8, kStarts = 10;
  inline static TemporaryDirectory directory;
  inline static std::array<std::filesystem::path, kManySeeds> checkpoints;
};

double sum(const std::vector<SiteScoreRow>& rows, double SiteScoreRow::*member) {
  double all = 0;
  for (const SiteScoreRow& row : rows) all += row.*member;
  return all;
}

// The mean and its standard error.
std::pair<double, double> mean_and_error(const std::vector<double>& values) {
  const auto count = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, std::sqrt(squares / (count - 1) / count)};
}

// What the terms between sites, which φ leaves out, do to a seed's sum is chance: it is less than
// the offsets themselves, and over seeds it is nothing.
TEST_F(SiteScores, TheSumOfPhiIsAboutTheOffset) {
  double of_offsets = 0, of_rests = 0;  // sums of squares
  std::vector<double> rests;
  for (int64_t seed = 1; seed <= kManySeeds; ++seed) {
    EngineConfig config = read_engine_config(checkpoint(seed));
    config.heldout_sequences = 250;
    Engine engine(config, EngineRole::kReplay);
    engine.load(checkpoint(seed));
    const double offset = engine.evaluate(engine.plan()) - engine.evaluate(PrecisionPlan::bf16());
    rests.push_back(sum(scores(engine), &SiteScoreRow::phi) - offset);
    of_offsets += offset * offset;
    of_rests += rests.back() * rests.back();
  }
  const auto [mean, error] = mean_and_error(rests);
  RecordProperty("of_rests", std::to_string(of_rests / of_offsets));
  RecordProperty("standard_errors", std::to_string(mean / error));
  EXPECT_LT(of_rests, of_offsets * 0.7);
  EXPECT_LT(std::abs(mean), 4 * error);
}

// One site at a time, where no other one's error is in the way.
TEST_F(SiteScores, PhiFollowsEachSitesOwnOffset) {
  EngineConfig config = read_engine_config(checkpoint(1));
  config.heldout_sequences = 250;
  Engine engine(config, EngineRole::kReplay);
  engine.load(checkpoint(1));
  const double bf16 = engine.evaluate(PrecisionPlan::bf16());
  double both = 0, of_phi = 0, of_offset = 0;
  for (const SiteScoreRow& row : scores(engine)) {
    const double offset =
        engine.evaluate(plan_of("[[rule]]\nmatch = \"" + row.site + "\"\nfprop = \"fp8\"\n")) -
        bf16;
    both += row.phi * offset;
    of_phi += row.phi * row.phi;
    of_offset += offset * offset;
  }
  RecordProperty("cosine", std::to_string(both / std::sqrt(of_phi * of_offset)));
  EXPECT_GT(both / std::sqrt(of_phi * of_offset), 0.8);
}

// Without scales every number is rounded by itself.
TEST_F(SiteScores, HowAStepIsCutIntoMicroBatchesDoesNotMatter) {
  const PrecisionPlan plan = plan_of(
      "[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"none\"\nforward_format = "
      "\"e8m3\"\ngradient_format = \"e8m3\"\n");
  std::array<std::vector<SiteScoreRow>, 2> rows;
  for (int two = 0; two < 2; ++two) {
    EngineConfig config = read_engine_config(checkpoint(1));
    config.batch = {.sequences = two == 1 ? 8 : 16, .tokens = 32, .accumulation = two + 1};
    Engine engine(config, EngineRole::kReplay);
    engine.load(checkpoint(1));
    rows[static_cast<size_t>(two)] = engine.scores(plan, engine.step() + 1);
  }
  double psi = 0, phi = 0, psi_apart = 0, phi_apart = 0;
  for (size_t i = 0; i < rows[0].size(); ++i) {
    psi += std::abs(rows[0][i].psi);
    phi += std::abs(rows[0][i].phi);
    psi_apart += std::abs(rows[0][i].psi - rows[1][i].psi);
    phi_apart += std::abs(rows[0][i].phi - rows[1][i].phi);
  }
  EXPECT_GT(psi, 0);
  EXPECT_LT(psi_apart, 0.1 * psi);
  EXPECT_LT(phi_apart, 0.1 * phi);
}

TEST_F(SiteScores, RowsAreOfTheSitesInFp8InTheModelsOrder) {
  auto engine = load(1);
  const std::vector<std::string> sites = engine->config().model.sites();
  const std::vector<SiteScoreRow> rows = scores(*engine);
  ASSERT_EQ(rows.size(), sites.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].site, sites[i]);
    EXPECT_TRUE(std::isfinite(rows[i].phi) && std::isfinite(rows[i].psi)) << sites[i];
    EXPECT_GT(rows[i].sqnr_db, 15) << sites[i];
    EXPECT_LT(rows[i].sqnr_db, 45) << sites[i];
  }
  EXPECT_TRUE(engine->scores(PrecisionPlan::bf16(), engine->step() + 1).empty());
  const std::vector<SiteScoreRow> some =
      engine->scores(plan_of("[[rule]]\nmatch = \"{" + kUp + "," + kQ + "}\"\nfprop = \"fp8\"\n"),
                     engine->step() + 1);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].site, kUp);
  EXPECT_EQ(some[1].site, kQ);
  EXPECT_EQ(some[0].psi, 0);
  // A site's φ does not depend on what other sites run in.
  EXPECT_EQ(some[0].phi, std::ranges::find(rows, kUp, &SiteScoreRow::site)->phi);
}

TEST_F(SiteScores, AForwardPassInBf16CostsNothing) {
  auto engine = load(1);
  const std::vector<SiteScoreRow> rows =
      engine->scores(plan_of("[[rule]]\nmatch = \"*\"\ndgrad = \"fp8\"\n"), engine->step() + 1);
  ASSERT_FALSE(rows.empty());
  for (const SiteScoreRow& row : rows) {
    EXPECT_EQ(row.phi, 0);
    EXPECT_EQ(row.sqnr_db, HUGE_VAL);
    EXPECT_NE(row.psi, 0) << row.site;
  }
}

TEST_F(SiteScores, AnalysingChangesNothing) {
  auto plain = load(1), watched = load(1);
  const PrecisionPlan other =
      plan_of("[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"delayed\"\n");
  for (int i = 0; i < 3; ++i) {
    const uint64_t before = watched->weights_hash();
    scores(*watched);
    watched->scores(other, watched->step() + 1);
    EXPECT_EQ(watched->weights_hash(), before);
    const StepResult expected = plain->train_step(), got = watched->train_step();
    EXPECT_EQ(got.loss, expected.loss);
    EXPECT_EQ(got.weights_hash, expected.weights_hash);
  }
  EXPECT_EQ(watched->evaluate(watched->plan()), plain->evaluate(plain->plan()));
}

TEST_F(SiteScores, TheSameCheckpointGivesTheSameNumbers) {
  auto engine = load(2), other = load(2);
  const std::vector<SiteScoreRow> once = scores(*engine), twice = scores(*engine),
                                  elsewhere = scores(*other);
  for (size_t i = 0; i < once.size(); ++i) {
    for (const std::vector<SiteScoreRow>* rows : {&twice, &elsewhere}) {
      EXPECT_EQ((*rows)[i].phi, once[i].phi);
      EXPECT_EQ((*rows)[i].psi, once[i].psi);
      EXPECT_EQ((*rows)[i].sqnr_db, once[i].sqnr_db);
    }
  }
}

// A fault of the backward pass alone costs as much as the next update shows, over several starts:
// in one of them the rounding of the weights that are updated is as large.
TEST_F(SiteScores, PsiIsAboutWhatAnUpdateCosts) {
  for (const char* gemm : {"wgrad", "dgrad"}) {
    const PrecisionPlan plan =
        plan_of("[[rule]]\nmatch = \"" + kDown + "\"\n" + gemm + " = \"fp8\"\n");
    double predicted = 0;
    std::vector<double> costs;
    for (int64_t seed = 1; seed <= kSeeds; ++seed) {
      EngineConfig config = read_engine_config(checkpoint(seed));
      config.optimizer.learning_rate /= 2;  // to first order
      config.faults = {
          {.kind = FaultKind::kScaleShift, .site = kDown, .tensor = "gradient", .log2_factor = 8}};
      Engine engine(config, EngineRole::kReplay);
      const auto loss_after_a_step = [&](int64_t start, const PrecisionPlan& under) {
        engine.load(checkpoint(seed));
        engine.perturb(start, kPerturbScale);
        engine.set_plan(under);
        engine.train_step();
        return engine.evaluate(PrecisionPlan::bf16());
      };
      engine.load(checkpoint(seed));
      predicted += engine.scores(plan, engine.step() + 1).at(0).psi / kSeeds;
      for (int64_t start = 1; start <= kStarts; ++start) {
        costs.push_back(loss_after_a_step(start, plan) -
                        loss_after_a_step(start, PrecisionPlan::bf16()));
      }
    }
    const auto [measured, error] = mean_and_error(costs);
    RecordProperty(std::string(gemm) + "_predicted", std::to_string(predicted * 1e3));
    RecordProperty(std::string(gemm) + "_measured", std::to_string(measured * 1e3));
    RecordProperty(std::string(gemm) + "_error", std::to_string(error * 1e3));
    EXPECT_GT(predicted, 0) << gemm;
    EXPECT_GT(measured, 2 * error) << gemm << ": there is no cost to predict";
    EXPECT_GT(predicted, (measured - 2 * error) / 2) << gemm;
    EXPECT_LT(predicted, (measured + 2 * error) * 2) << gemm;
  }
}

struct Guilty {
  const char* name;
  Fault fault;
};

TEST_F(SiteScores, PhiRanksTheSiteOfAForwardFaultFirst) {
  const std::vector<Guilty> all = {
      {"input scale", {.kind = FaultKind::kScaleShift, .site = kDown, .log2_factor = 8}},
      {"weight scale",
       {.kind = FaultKind::kScaleShift, .site = kQ, .tensor = "weight", .log2_factor = 4}},
      {"lost terms", {.kind = FaultKind::kDroppedKBlock, .site = kUp, .element = 16, .terms = 16}},
      {"coarse format", {.kind = FaultKind::kReducedMantissa, .site = kDown, .format = "e2m1"}},
  };
  for (const Guilty& guilty : all) {
    EXPECT_GE(first_by(&SiteScoreRow::phi, guilty.fault), kSeeds - 1) << guilty.name;
  }
}

TEST_F(SiteScores, PsiRanksTheSiteOfABackwardFaultFirst) {
  const std::vector<Guilty> all = {
      {"gradient scale",
       {.kind = FaultKind::kScaleShift, .site = kDown, .tensor = "gradient", .log2_factor = 8}},
      {"underflow", {.kind = FaultKind::kGradientUnderflow, .site = kUp, .log2_factor = -20}},
      {"lost terms of wgrad",
       {.kind = FaultKind::kDroppedKBlock, .site = kDown, .gemm = "wgrad", .terms = 192}},
      {"lost terms of dgrad",
       {.kind = FaultKind::kDroppedKBlock, .site = kUp, .gemm = "dgrad", .terms = 96}},
  };
  for (const Guilty& guilty : all) {
    EXPECT_GE(first_by(&SiteScoreRow::psi, guilty.fault), kSeeds - 1) << guilty.name;
  }
}

TEST_F(SiteScores, AFaultActsFromItsStepOn) {
  auto healthy = load(1);
  const int64_t step = healthy->step();
  auto engine = load(
      1,
      {{.kind = FaultKind::kScaleShift, .site = kDown, .start_step = step + 5, .log2_factor = 8}});
  const auto phi = [&](Engine& of, int64_t at) {
    return sum(of.scores(of.plan(), at), &SiteScoreRow::phi);
  };
  EXPECT_EQ(phi(*engine, step + 4), phi(*healthy, step + 4));
  EXPECT_GT(phi(*engine, step + 5), 2 * phi(*healthy, step + 5));
}

// The rounding of a kernel that the fake has not is not felt by the fake.
TEST_F(SiteScores, WithoutTheFp8KernelItsFaultsCostNothing) {
  auto healthy = load(1);
  auto engine =
      load(1, {{.kind = FaultKind::kDroppedKBlock, .site = kUp, .element = 16, .terms = 16}});
  const double with = sum(scores(*engine), &SiteScoreRow::phi);
  engine->set_mode({.role = EngineRole::kReplay, .fakequant = true});
  const double without = sum(scores(*engine), &SiteScoreRow::phi);
  EXPECT_EQ(without, sum(scores(*healthy), &SiteScoreRow::phi));
  EXPECT_GT(with, 2 * without);
}

// Two sites whose FP8 leaves nearly nothing of their inputs. φ takes each error for a small one: in
// the first seed it puts the keys first (0.23 nats against 0.09), where the loss pays 0.06 for them
// and 0.43 for the down projection.
TEST_F(SiteScores, WhereErrorsAreLargeTheLossIsMeasuredAndNamesTheWorstSite) {
  const std::string keys = "model.layers.0.self_attn.k_proj";
  const std::string down = "model.layers.0.mlp.down_proj";
  int64_t first = 0;
  for (int64_t seed = 1; seed <= kSeeds; ++seed) {
    auto engine = load(seed, {{.kind = FaultKind::kScaleShift, .site = keys, .log2_factor = 6},
                              {.kind = FaultKind::kScaleShift, .site = down, .log2_factor = 6}});
    const std::vector<SiteScoreRow> rows = scores(*engine);
    const double bf16 = engine->evaluate(PrecisionPlan::bf16());
    for (const std::string& site : {keys, down}) {
      const double measured =
          engine->evaluate(plan_of("[[rule]]\nmatch = \"" + site + "\"\nfprop = \"fp8\"\n")) - bf16;
      const double score = std::ranges::find(rows, site, &SiteScoreRow::site)->phi;
      EXPECT_NEAR(score, measured, 0.25 * measured + 0.02) << site << ", seed " << seed;
    }
    first += std::ranges::max(rows, {}, &SiteScoreRow::phi).site == down;
  }
  EXPECT_EQ(first, kSeeds);
}

// At most so many sites are measured, and those that are passed over do not overtake them.
TEST_F(SiteScores, WhenEverySiteIsBrokenTheMeasuredOnesStayAhead) {
  std::vector<Fault> faults;
  auto healthy = load(1);
  for (const SiteScoreRow& row : scores(*healthy)) {
    faults.push_back({.kind = FaultKind::kScaleShift, .site = row.site, .log2_factor = 6});
  }
  auto engine = load(1, faults);
  const double bf16 = engine->evaluate(PrecisionPlan::bf16());
  std::vector<SiteScoreRow> rows = scores(*engine);
  std::ranges::stable_sort(rows, std::greater<>(), &SiteScoreRow::phi);
  for (size_t i = 0; i < 4; ++i) {
    const double measured =
        engine->evaluate(plan_of("[[rule]]\nmatch = \"" + rows[i].site + "\"\nfprop = \"fp8\"\n")) -
        bf16;
    EXPECT_NEAR(rows[i].phi, measured, 0.25 * measured + 0.02) << rows[i].site;
  }
}

// An outlier channel and its weight's column cancel in BF16; its site is judged by the FP8 of both.
TEST_F(SiteScores, AnOutlierChannelCountsOnlyInFp8) {
  auto healthy = load(1);
  auto engine = load(1, {{.kind = FaultKind::kOutlierChannel,
                          .site = kDown,
                          .log2_factor = 14,
                          .element = 5,
                          .steps = 1}});
  const std::vector<SiteScoreRow> rows = scores(*engine), without = scores(*healthy);
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].site == kDown) {
      EXPECT_LT(rows[i].sqnr_db, without[i].sqnr_db - 3);
    } else {
      EXPECT_EQ(rows[i].phi, without[i].phi) << rows[i].site;
      EXPECT_EQ(rows[i].sqnr_db, without[i].sqnr_db) << rows[i].site;
    }
  }
}

TEST_F(SiteScores, AnOutlierChannelThatHasNotGrownYetCostsNothing) {
  auto healthy = load(1);
  auto engine = load(1, {{.kind = FaultKind::kOutlierChannel,
                          .site = kDown,
                          .start_step = healthy->step() + 1,
                          .log2_factor = 4,
                          .element = 5,
                          .steps = 1000}});
  const std::vector<SiteScoreRow> rows = scores(*engine), without = scores(*healthy);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].phi, without[i].phi) << rows[i].site;
    EXPECT_EQ(rows[i].psi, without[i].psi) << rows[i].site;
  }
}

TEST_F(SiteScores, AReplayAnalysesAndTakesNoStep) {
  auto engine = load(1);
  const std::vector<SiteScoreRow> expected = scores(*engine);
  Replayer replayer;
  const ReplayResult result =
      replayer.run({.checkpoint = checkpoint(1), .steps = 1, .arm = "scores"});
  EXPECT_TRUE(result.steps.empty());
  EXPECT_FALSE(result.replay_end_loss_bf16);
  ASSERT_EQ(result.scores.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(result.scores[i].site, expected[i].site);
    EXPECT_EQ(result.scores[i].phi, expected[i].phi);
    EXPECT_EQ(result.scores[i].psi, expected[i].psi);
  }
  EXPECT_TRUE(replayer
                  .run({.checkpoint = checkpoint(1),
                        .steps = 20,
                        .arm = "scores",
                        .plan_toml = PrecisionPlan::bf16().to_toml()})
                  .scores.empty());
}

// The head is the embedding here: a weight whose gradient is not the GEMM's alone.
TEST_F(SiteScores, TiedEmbeddingsAreJudgedByTheGemmsPart) {
  auto engine = load(1);
  ASSERT_TRUE(engine->config().model.tie_embeddings);
  const std::vector<SiteScoreRow> rows = engine->scores(
      plan_of("[[rule]]\nmatch = \"lm_head\"\nwgrad = \"fp8\"\n"), engine->step() + 1);
  ASSERT_EQ(rows.size(), 1u);
  RecordProperty("psi", std::to_string(rows[0].psi * 1e6));
  EXPECT_LT(std::abs(rows[0].psi), 2e-5);
}

}  // namespace
}  // namespace gnomon::test
