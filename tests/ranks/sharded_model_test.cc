// A model whose ranks share the weights out, beside one that has all of them: passes that are
// broken off, passes that other ranks make.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/errors.h"
#include "base/philox.h"
#include "tests/engine/engine_fixture.h"
#include "tests/ranks/ranks.h"
#include "trainer/engine/model.h"

namespace gnomon::test {
namespace {

constexpr int64_t kTokens = 32;

// Ends the pass at this of its operands.
class Interrupter final : public TensorObserver {
 public:
  explicit Interrupter(int at) : left_(at) {}
  void begin_products() override {}
  void operand(int, Gemm, TensorRole, std::span<const bf16>, const Quantizer*, float) override {
    if (left_-- == 0) throw Error("broken off");
  }
  void output(int, std::span<const bf16>, int64_t) override {}
  bool done() const { return left_ < 0; }

 private:
  int left_;
};

class ShardedModel : public testing::Test {
 protected:
  ShardedModel() {
    config.layers = 4;
    config.tie_embeddings = false;
    whole = std::make_unique<Model>(config, 2, 16, *backend, scaling, nullptr);
    sharded = std::make_unique<Model>(config, 2, 16, *backend, scaling, nullptr, MemoryChoice{},
                                      WeightRanks{collectives().rank(), collectives().size()});
    sharded->working().connect(collectives());
    std::vector<float> values(static_cast<size_t>(whole->layout().elements()));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = (philox_uniform(philox(3, 1, i)[0]) - 0.5f) / 4;
    }
    whole->set_weights(values);
    sharded->set_weights(values);
    // Each rank has tokens of its own.
    for (int64_t i = 0; i < kTokens; ++i) {
      const auto key = static_cast<uint64_t>(100 * collectives().rank() + i);
      tokens.push_back(static_cast<int32_t>(philox(4, 2, key)[0] % 64));
      targets.push_back(static_cast<int32_t>(philox(4, 3, key)[0] % 64));
    }
  }
  PassPlan pass(TensorObserver* observer = nullptr) {
    return {.sites = &sites, .step = 1, .observer = observer};
  }
  double loss(Model& model, TensorObserver* observer = nullptr) {
    return model.forward_backward(pass(observer), tokens, targets, 1.0f, false);
  }
  void expect_the_bits_of_the_whole() {
    EXPECT_EQ(loss(*sharded), loss(*whole));
    EXPECT_TRUE(std::ranges::equal(sharded->gradients(), whole->gradients()));
    EXPECT_EQ(sharded->logits(pass(), tokens), whole->logits(pass(), tokens));
  }

  ModelConfig config = small_model();
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  ScalingState scaling{static_cast<int>(small_model().sites().size()) + 2 * 7};
  std::vector<SitePrecision> sites{static_cast<size_t>(4 * 7 + 1),
                                   PrecisionPlan::bf16().resolve("lm_head", 4)};
  std::unique_ptr<Model> whole, sharded;
  std::vector<int32_t> tokens, targets;
};

TEST_F(ShardedModel, HasTheBitsOfOneWithAllWeightsPassAfterPass) {
  for (int pass = 0; pass < 3; ++pass) expect_the_bits_of_the_whole();
}

// Wherever it was broken off, nothing is under way then: the ranks may speak, and pass again.
TEST_F(ShardedModel, CanBeBrokenOffAnywhere) {
  for (int at = 0;; at += 5) {
    Interrupter interrupter(at);
    bool thrown = false;
    try {
      loss(*sharded, &interrupter);
    } catch (const Error&) {
      thrown = true;
    }
    EXPECT_EQ(thrown, interrupter.done());
    collectives().barrier();
    expect_the_bits_of_the_whole();
    if (!thrown) break;
  }
}

TEST_F(ShardedModel, IsAccompaniedByRanksThatHaveNothingToDo) {
  for (int turn = 0; turn < collectives().size(); ++turn) {
    if (turn == collectives().rank()) {
      EXPECT_EQ(loss(*sharded), loss(*whole));
      EXPECT_EQ(sharded->logits(pass(), tokens), whole->logits(pass(), tokens));
    } else {
      sharded->accompany(true);
      sharded->accompany(false);
    }
  }
}

TEST_F(ShardedModel, PreparesOneLayerAndForgetsNothing) {
  sharded->prepare(pass(), kTokens, false);
  expect_the_bits_of_the_whole();
}

}  // namespace
}  // namespace gnomon::test
