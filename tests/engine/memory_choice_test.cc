#include "trainer/engine/memory_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "tests/engine/engine_fixture.h"
#include "tests/engine/forwarding_backend.h"
#include "trainer/engine/memory_need.h"
#include "trainer/engine/parameters.h"
#include "trainer/engine/statistics_collector.h"
#include "trainer/engine/synthetic_data.h"

namespace gnomon::test {
namespace {

using testing::HasSubstr;

int64_t bytes_of(const Engine& engine, const std::string& arena) {
  for (const ArenaSize& size : engine.arenas()) {
    if (size.name == arena) return size.bytes;
  }
  ADD_FAILURE() << "no arena " << arena;
  return 0;
}

std::string rules(const std::string& recipe, const std::string& keys = "") {
  return "allow_ragged_tiles = true\n[[rule]]\nmatch = \"*\"\ngemms = \"fp8\"\nrecipe = \"" +
         recipe + "\"\n" + keys;
}

struct MemoryCase {
  std::string name, plan;
  bool qk_norm = false;
};
void PrintTo(const MemoryCase& it, std::ostream* out) { *out << it.name; }

class Recomputed : public testing::TestWithParam<MemoryCase> {};

TEST_P(Recomputed, ChangesNoBitAndTakesLessMemory) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.model.layers = 4;
  config.model.qk_norm = GetParam().qk_norm;
  config.model.qkv_bias = !GetParam().qk_norm;
  std::vector<std::vector<uint64_t>> hashes;
  std::vector<int64_t> bytes;
  for (Recompute recompute : {Recompute::kNone, Recompute::kSwiglu, Recompute::kBlock}) {
    config.memory.recompute = recompute;
    Engine engine(config);
    engine.set_plan(PrecisionPlan::parse(GetParam().plan));
    engine.initialize();
    engine.prepare();
    hashes.push_back(train_hashes(engine, 4));
    bytes.push_back(bytes_of(engine, "activations"));
    EXPECT_TRUE(std::isfinite(engine.evaluate(engine.plan())));
  }
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
  // Three layers keep no product of gate and up; then nothing but what enters them.
  const int64_t n = config.batch.sequences * config.batch.tokens, ffn = config.model.ffn;
  EXPECT_GE(bytes[0] - bytes[1], 3 * n * ffn * 4);
  EXPECT_LT(bytes[2], bytes[0] / 2);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, Recomputed,
    testing::Values(MemoryCase{"bf16", ""}, MemoryCase{"current", rules("current")},
                    MemoryCase{"delayed", rules("delayed", "amax_history = 3\n")},
                    MemoryCase{"block", rules("block")}, MemoryCase{"mx", rules("mx")},
                    MemoryCase{"norm_of_heads", rules("current"), true}));

TEST(RecomputedFault, StrikesAgainWhereItStruck) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  config.faults = {{.kind = FaultKind::kStuckBit,
                    .site = "model.layers.0.mlp.gate_proj",
                    .tensor = "output",
                    .start_step = 2,
                    .element = 3,
                    .bit = 13,
                    .value = 1}};
  std::vector<std::vector<uint64_t>> hashes;
  for (Recompute recompute : {Recompute::kNone, Recompute::kSwiglu, Recompute::kBlock}) {
    config.memory.recompute = recompute;
    Engine engine(config);
    engine.set_plan(PrecisionPlan::fp8());
    engine.initialize();
    hashes.push_back(train_hashes(engine, 3));
  }
  EXPECT_EQ(hashes[1], hashes[0]);
  EXPECT_EQ(hashes[2], hashes[0]);
}

// 256 tokens a micro-batch.
EngineConfig long_batch(const std::filesystem::path& directory) {
  EngineConfig config = small_engine(directory);
  config.model.context = 128;
  config.batch.tokens = 128;
  config.heldout_sequences = 1;
  return config;
}

class HeadInParts : public testing::TestWithParam<MemoryCase> {};

TEST_P(HeadInParts, IsTheSameModelToRounding) {
  TemporaryDirectory directory;
  EngineConfig config = long_batch(directory.path());
  const PrecisionPlan plan = PrecisionPlan::parse(GetParam().plan);
  Engine whole(config);
  config.memory.head_rows = 128;
  Engine parts(config), again(config);
  for (Engine* engine : {&whole, &parts, &again}) {
    engine->set_plan(plan);
    engine->initialize();
    engine->prepare();
  }
  EXPECT_NEAR(parts.evaluate(plan), whole.evaluate(plan), 1e-4 * whole.evaluate(plan));
  for (int step = 1; step <= 3; ++step) {
    const StepResult a = whole.train_step(), b = parts.train_step();
    EXPECT_NEAR(b.loss, a.loss, 1e-3 * a.loss) << step;
    EXPECT_NEAR(b.grad_norm, a.grad_norm, 1e-2 * a.grad_norm) << step;
    EXPECT_EQ(again.train_step().weights_hash, b.weights_hash) << step;
  }
  const int64_t kept = int64_t{128} * config.model.vocabulary * 2;
  EXPECT_GE(bytes_of(whole, "activations") - bytes_of(parts, "activations"), kept);
}

INSTANTIATE_TEST_SUITE_P(Plans, HeadInParts,
                         testing::Values(MemoryCase{"bf16", ""},
                                         MemoryCase{"current", rules("current")},
                                         MemoryCase{"delayed", rules("delayed")},
                                         MemoryCase{"block", rules("block")}));

// At the same weights, with scales that are the same for rows alone as for all.
TEST(HeadInPartsSeen, StatisticsAreOfTheFirstPartAndScoresOfAll) {
  TemporaryDirectory directory;
  EngineConfig config = long_batch(directory.path());
  config.heldout_sequences = 2;
  write_token_dataset(config.data, {learnable_tokens(1, 64, 2000)}, learnable_tokens(4, 64, 300),
                      64);
  const PrecisionPlan plan = PrecisionPlan::parse(rules("rowwise_gw_hp"));
  Engine whole(config);
  config.memory.head_rows = 128;
  Engine parts(config);
  whole.set_plan(plan);
  whole.initialize();
  train_hashes(whole, 20);
  parts.load(write_checkpoint(whole, directory.path() / "checkpoints"));
  std::vector<StatisticsRow> rows[2];
  std::vector<SiteScoreRow> scores[2];
  for (Engine* engine : {&whole, &parts}) {
    const size_t which = engine == &parts ? 1 : 0;
    StatisticsConfig statistics;
    statistics.match = {"lm_head", "*.down_proj"};
    const auto collector = engine->statistics(statistics, "");
    engine->inspect(21, *collector);
    rows[which] = collector->rows();
    scores[which] = engine->scores(plan, 21);
  }
  EXPECT_EQ(rows[1].size(), rows[0].size());
  ASSERT_EQ(scores[1].size(), scores[0].size());
  for (size_t i = 0; i < scores[0].size(); ++i) {
    const SiteScoreRow &all = scores[0][i], &in_parts = scores[1][i];
    EXPECT_EQ(in_parts.site, all.site);
    EXPECT_NEAR(in_parts.phi, all.phi, 0.1 * std::abs(all.phi) + 1e-6) << all.site;
    EXPECT_NEAR(in_parts.psi, all.psi, 0.1 * std::abs(all.psi) + 1e-9) << all.site;
  }
}

TEST(RowsOfLogits, AreAllUntilTheyAreAGibibyte) {
  ModelConfig model;
  model.vocabulary = 1 << 17;
  EXPECT_EQ(MemoryChoice{}.rows_of_logits(model, 4096), 4096);
  EXPECT_EQ(MemoryChoice{}.rows_of_logits(model, 4097), 2048);
  EXPECT_EQ(MemoryChoice{.head_rows = 256}.rows_of_logits(model, 4096), 256);
  EXPECT_EQ(MemoryChoice{.head_rows = 256}.rows_of_logits(model, 100), 100);
  model.vocabulary = 1 << 26;
  EXPECT_EQ(MemoryChoice{}.rows_of_logits(model, 4096), 128);
}

// ---- too little memory ----

class LittleMemory final : public Memory {
 public:
  std::byte* allocate(int64_t bytes, const std::string& purpose) override {
    taken += bytes;
    return host_memory().allocate(bytes, purpose);
  }
  void give_back(std::byte* memory, int64_t bytes) noexcept override {
    host_memory().give_back(memory, bytes);
  }
  bool on_host() const override { return true; }
  void read(std::span<const std::byte> from, std::byte* to) override {
    host_memory().read(from, to);
  }
  void write(std::span<const std::byte> from, std::byte* to) override {
    host_memory().write(from, to);
  }
  void copy(std::span<const std::byte> from, std::byte* to) override {
    host_memory().copy(from, to);
  }
  std::byte* allocate_host_room(int64_t bytes, const std::string& purpose) override {
    return host_memory().allocate_host_room(bytes, purpose);
  }
  void give_back_host_room(std::byte* room, int64_t bytes) noexcept override {
    host_memory().give_back_host_room(room, bytes);
  }
  std::unique_ptr<CopyOut> start_copy_out(std::span<const Piece> pieces) override {
    return host_memory().start_copy_out(pieces);
  }
  void settle() override {}
  std::optional<MemoryLeft> left() override { return MemoryLeft{free, int64_t{80} << 30}; }

  int64_t free = 0;
  int64_t taken = 0;
};

class LittleBackend final : public ForwardingBackend<bf16> {
 public:
  explicit LittleBackend(LittleMemory& memory) : ForwardingBackend<bf16>(1), memory_(memory) {}
  Memory& memory() override { return memory_; }

 private:
  LittleMemory& memory_;
};

class TooLittle : public testing::Test {
 protected:
  TooLittle() {
    config.model = {.layers = 32, .width = 4096, .heads = 32, .kv_heads = 8, .ffn = 14336};
    config.model.vocabulary = 128256;
    config.model.context = 4096;
    config.batch = {.sequences = 4, .tokens = 4096, .accumulation = 2};
  }
  int64_t need(const EngineConfig& of) {
    LittleBackend backend(memory);
    int64_t sum = int64_t{2} << 30;
    for (const ArenaSize& arena : memory_need(of, ranks, backend)) sum += arena.bytes;
    return sum;
  }
  std::string refusal(int64_t free) {
    memory.free = free;
    LittleBackend backend(memory);
    try {
      check_memory(config, ranks, backend);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }
  EngineConfig config;
  int ranks = 1;
  LittleMemory memory;
};

TEST_F(TooLittle, NamesTheSizesAndWhatWouldFit) {
  const int64_t all = need(config);
  EXPECT_EQ(refusal(all), "accepted");
  const std::string barely = refusal(all - 1);
  EXPECT_THAT(barely, HasSubstr("optimizer"));
  EXPECT_THAT(barely, HasSubstr("activations"));
  EXPECT_THAT(barely, HasSubstr("of 80.0 GiB are free"));
  EXPECT_THAT(barely, HasSubstr("memory.recompute = \"swiglu\""));
  EXPECT_THAT(barely, HasSubstr("batch.sequences = 2 with batch.accumulation = 4"));
  EXPECT_THAT(barely, HasSubstr("would fit"));
}

TEST_F(TooLittle, OffersOnlyWhatFits) {
  EngineConfig block = config;
  block.memory.recompute = Recompute::kBlock;
  const std::string text = refusal(need(block));
  EXPECT_THAT(text, HasSubstr("memory.recompute = \"block\""));
  EXPECT_THAT(text, testing::Not(HasSubstr("memory.recompute = \"swiglu\"")));
}

TEST_F(TooLittle, OffersToShareOutTheWeightsWhereThereAreRanks) {
  ranks = 8;
  const std::string offer = "ranks.shard = \"weights\"";
  const std::string barely = refusal(need(config) - 1);
  EXPECT_THAT(barely, HasSubstr(offer + " ("));
  EXPECT_THAT(refusal(int64_t{10} << 30), HasSubstr(offer + ", memory.recompute = \"block\""));
  EngineConfig sharded = config;
  sharded.shard = Sharding::kWeights;
  // 30.0 GB are 7.5 billion weights as they are and as copies. 5.7 GB of them stay: an eighth of
  // the weights, two layers of 0.22 billion and the embedding's 0.53 with copies.
  EXPECT_NEAR(static_cast<double>(need(config) - need(sharded)), 24.3e9, 0.05e9);
  config = sharded;
  EXPECT_THAT(refusal(need(config) - 1), testing::Not(HasSubstr(offer)));
  EXPECT_EQ(refusal(need(config)), "accepted");
  ranks = 1;
  EXPECT_THAT(refusal(need(config) - 1), testing::Not(HasSubstr(offer)));
}

TEST_F(TooLittle, SaysWhenNothingHelps) {
  EXPECT_THAT(refusal(int64_t{10} << 30), HasSubstr("too much as well"));
}

TEST_F(TooLittle, IsSaidBeforeAnythingIsTaken) {
  TemporaryDirectory directory;
  const EngineConfig small = small_engine(directory.path());
  const BackendMakers little = {
      .bf16 = [this](int) { return std::make_unique<LittleBackend>(memory); }};
  EXPECT_THROW(Engine(small, EngineRole::kLive, nullptr, &little), Error);
  memory.free = int64_t{1} << 40;
  EXPECT_LT(memory.taken, 4096);
  const Engine fits(small, EngineRole::kLive, nullptr, &little);
  EXPECT_GT(memory.taken, 100'000);
}

// What is measured is what is taken.
TEST(MemoryNeed, IsWhatTheEngineTakes) {
  TemporaryDirectory directory;
  EngineConfig config = small_engine(directory.path());
  for (Recompute recompute : {Recompute::kNone, Recompute::kSwiglu, Recompute::kBlock}) {
    config.memory.recompute = recompute;
    const Engine engine(config);
    const auto backend = make_cpu_backend(1);
    const std::vector<ArenaSize> need = memory_need(config, 1, *backend);
    ASSERT_EQ(need.size(), engine.arenas().size());
    for (size_t i = 0; i < need.size(); ++i) {
      EXPECT_EQ(need[i].name, engine.arenas()[i].name);
      EXPECT_EQ(need[i].bytes, engine.arenas()[i].bytes) << need[i].name;
    }
  }
}

}  // namespace
}  // namespace gnomon::test
