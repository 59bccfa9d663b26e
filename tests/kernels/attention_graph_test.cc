// The graphs that cuDNN is given, done by the book: they are attention, on tensors that lie side by
// side, whole and in parts.
#include "kernels/cuda/attention_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "lab/attention/problem.h"
#include "tests/kernels/graph_interpreter.h"

namespace gnomon::cuda {
namespace {

using testing::ElementsAre;

struct Tensors {
  explicit Tensors(const AttentionCase& problem, const AttentionInputs& inputs)
      : qkv(inputs.qkv), d_o(inputs.d_o), o(d_o.size()), d_qkv(qkv.size()) {
    const auto key = static_cast<size_t>(problem.width());
    const auto value = key + static_cast<size_t>(problem.kv_heads * problem.head_dim);
    lse.resize(static_cast<size_t>(problem.rows() * problem.heads));
    delta.resize(lse.size());
    all = {qkv.data(),           qkv.data() + key, qkv.data() + value, o.data(),
           lse.data(),           d_o.data(),       d_qkv.data(),       d_qkv.data() + key,
           d_qkv.data() + value, delta.data()};
  }
  std::vector<bf16> qkv, d_o, o, d_qkv;
  std::vector<float> lse, delta;
  std::vector<void*> all;
};

class AttentionGraph : public testing::TestWithParam<AttentionCase> {
 protected:
  static void run(const AttentionCase& problem, Tensors& tensors, int64_t bytes_most) {
    const AttentionShape whole = problem.shape();
    const OperationGraph forward = attention_forward_graph(whole, problem.width());
    gnomon::test::GraphInterpreter(forward, std::span(tensors.all).first(kLse + 1)).run();
    for (const AttentionPart& part : attention_parts(whole, bytes_most)) {
      const auto graph = attention_backward_graph(shape_of(part, whole), problem.width());
      std::vector<void*> at;
      for (int i = 0; i < kAttentionTensors; ++i) {
        const auto which = static_cast<AttentionTensor>(i);
        const int64_t size = which == kLse || which == kDelta ? sizeof(float) : sizeof(bf16);
        at.push_back(static_cast<std::byte*>(tensors.all[static_cast<size_t>(i)]) +
                     attention_offset(which, part, whole) * size);
      }
      gnomon::test::GraphInterpreter(graph, at).run();
    }
  }
};

TEST_P(AttentionGraph, IsAttentionAndItsGradientsWholeAndInParts) {
  const AttentionCase& problem = GetParam();
  const AttentionInputs inputs = attention_inputs(problem, 7);
  AttentionShape group = problem.shape();
  group.sequences = 1;
  group.heads /= group.kv_heads;
  group.kv_heads = 1;
  const int64_t least = attention_matrix_bytes(group);
  for (const int64_t bytes_most : {int64_t{1} << 40, 2 * least, least, int64_t{1}}) {
    Tensors tensors(problem, inputs);
    run(problem, tensors, bytes_most);
    const AttentionResults results{.o = tensors.o, .d_qkv = tensors.d_qkv};
    for (int64_t sequence = 0; sequence < problem.sequences; ++sequence) {
      for (int head = 0; head < problem.kv_heads; ++head) {
        const AttentionGroup found = group_of(problem, results, sequence, head);
        const AttentionGroup exact = exact_group(problem, inputs, sequence, head, 1);
        // Rounded to BF16, and dq and dk made of an o that is.
        EXPECT_LT(attention_difference(found.o, exact.o), 4e-6) << bytes_most;
        EXPECT_LT(attention_difference(found.dq, exact.dq), 2e-5) << bytes_most;
        EXPECT_LT(attention_difference(found.dk, exact.dk), 2e-5) << bytes_most;
        EXPECT_LT(attention_difference(found.dv, exact.dv), 4e-6) << bytes_most;
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Cases, AttentionGraph,
                         testing::Values(AttentionCase{1, 2, 1, 1, 8}, AttentionCase{2, 9, 4, 2, 8},
                                         AttentionCase{3, 5, 6, 3, 16},
                                         AttentionCase{2, 7, 3, 3, 8}));

TEST(AttentionGraphs, TensorsLieAsTheShapeSays) {
  // 5 sequences of 32 tokens, 6 heads over 2, rows of one matrix of (6 + 2·2)·64.
  const AttentionCase problem{5, 32, 6, 2, 64};
  AttentionShape shape = problem.shape();
  shape.stride_dq = 900;
  shape.stride_dkv = 800;
  const OperationGraph graph = attention_backward_graph(shape, problem.width());
  EXPECT_THAT(graph.tensors[kQ].sizes, ElementsAre(5, 6, 32, 64));
  EXPECT_THAT(graph.tensors[kQ].strides, ElementsAre(32 * 640, 64, 640, 1));
  EXPECT_THAT(graph.tensors[kK].sizes, ElementsAre(5, 2, 64, 32)) << "transposed";
  EXPECT_THAT(graph.tensors[kK].strides, ElementsAre(32 * 640, 64, 1, 640));
  EXPECT_THAT(graph.tensors[kO].strides, ElementsAre(32 * 384, 64, 384, 1)) << "dense";
  EXPECT_THAT(graph.tensors[kDQ].strides, ElementsAre(32 * 900, 64, 900, 1));
  EXPECT_THAT(graph.tensors[kDK].strides, ElementsAre(32 * 800, 64, 800, 1));
  EXPECT_THAT(graph.tensors[kDV].sizes, ElementsAre(5, 2, 32, 64));
  EXPECT_THAT(graph.tensors[kDV].strides, ElementsAre(32 * 800, 64, 800, 1));
  EXPECT_THAT(graph.tensors[kLse].strides, ElementsAre(6 * 32, 32, 1, 1));
  for (int i = 0; i < kAttentionTensors; ++i) {
    EXPECT_EQ(graph.tensors[static_cast<size_t>(i)].place, GraphTensor::Place::kMemory) << i;
  }
}

TEST(AttentionParts, AreAsManyAsTheWorkspaceAsksFor) {
  const AttentionShape shape = AttentionCase{5, 2048, 16, 4, 128}.shape();
  const int64_t sequence = int64_t{16} * 2048 * 2048 * 2;
  EXPECT_EQ(attention_matrix_bytes(shape), 5 * sequence);
  EXPECT_THAT(attention_parts(shape, 5 * sequence), ElementsAre(AttentionPart{0, 5, 0, 4}));
  EXPECT_THAT(
      attention_parts(shape, 3 * sequence - 1),
      ElementsAre(AttentionPart{0, 2, 0, 4}, AttentionPart{2, 2, 0, 4}, AttentionPart{4, 1, 0, 4}));
  const auto by_heads = attention_parts(shape, sequence / 4 * 3);
  ASSERT_EQ(by_heads.size(), 10u);
  EXPECT_EQ(by_heads[0], (AttentionPart{0, 1, 0, 3}));
  EXPECT_EQ(by_heads[1], (AttentionPart{0, 1, 3, 1}));
  EXPECT_EQ(by_heads[9], (AttentionPart{4, 1, 3, 1}));
  EXPECT_EQ(attention_parts(shape, 1).size(), 20u) << "a group of heads is never split";
  EXPECT_EQ(shape_of(by_heads[1], shape).heads, 4);
}

TEST(AttentionParts, AShorterBatchNeedsNoMore) {
  AttentionShape shape = AttentionCase{7, 512, 8, 2, 64}.shape();
  const int64_t limit = attention_matrix_bytes(shape) * 3 / 7;
  const auto most = [&](int64_t sequences) {
    shape.sequences = sequences;
    int64_t bytes = 0;
    for (const AttentionPart& part : attention_parts(shape, limit)) {
      bytes = std::max(bytes, attention_matrix_bytes(shape_of(part, shape)));
    }
    return bytes;
  };
  for (int64_t sequences = 1; sequences < 7; ++sequences) EXPECT_LE(most(sequences), most(7));
}

}  // namespace
}  // namespace gnomon::cuda
