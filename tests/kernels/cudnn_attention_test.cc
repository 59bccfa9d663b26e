// Attention by cuDNN with a library in its place that does each graph by the book: what it is given
// and when, the workspace, and when our own attention takes over. Our own is emulated.
#include "kernels/cuda/cudnn_attention.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/errors.h"
#include "base/shared_library.h"
#include "kernels/cuda/attention_choice.h"
#include "kernels/cuda/attention_graph.h"
#include "kernels/cuda/device.h"
#include "lab/attention/check.h"
#include "tests/engine/emulated_machine.h"
#include "tests/kernels/fake_cudnn.h"
#include "tests/kernels/graph_interpreter.h"

namespace gnomon::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kNotSupportedStatus = 3000, kNoRuntimeLibrary = 3010, kInternalError = 4000;
constexpr int kNoteTensorCore = 0, kNoteNondeterministic = 4;

// The forward graph has half of these tensors in memory and two numbers.
bool is_backward(const test::FakeRun& run) { return run.addresses.size() > kAttentionTensors; }

// Does what the graph of a run says.
void do_by_the_book(const test::FakeRun& run) {
  const auto tensor = [&](int which) { return run.tensors.at(which + 1); };
  AttentionShape shape;
  shape.sequences = tensor(kQ).sizes[0];
  shape.heads = static_cast<int>(tensor(kQ).sizes[1]);
  shape.tokens = tensor(kQ).sizes[2];
  shape.head_dim = static_cast<int>(tensor(kQ).sizes[3]);
  shape.kv_heads = static_cast<int>(tensor(kK).sizes[1]);
  shape.stride_q = tensor(kQ).strides[2];
  shape.stride_kv = tensor(kK).strides[3];
  const bool backward = is_backward(run);
  if (backward) {
    shape.stride_dq = tensor(kDQ).strides[2];
    shape.stride_dkv = tensor(kDK).strides[2];
  }
  const int64_t stride_o = tensor(kO).strides[2];
  const OperationGraph graph = backward ? attention_backward_graph(shape, stride_o)
                                        : attention_forward_graph(shape, stride_o);
  ASSERT_EQ(run.operations, graph.steps.size());
  std::vector<void*> memory;
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const GraphTensor& one = graph.tensors[i];
    const auto id = static_cast<int64_t>(i) + 1;
    const auto& sizes = run.tensors.at(id).sizes;
    ASSERT_TRUE(std::equal(sizes.begin(), sizes.end(), one.sizes.begin(), one.sizes.end())) << i;
    if (one.place == GraphTensor::Place::kMemory) memory.push_back(run.addresses.at(id));
    if (one.place != GraphTensor::Place::kNumber) continue;
    EXPECT_TRUE(run.tensors.at(id).by_value);
    EXPECT_EQ(*static_cast<const float*>(run.addresses.at(id)), one.number);
  }
  test::GraphInterpreter(graph, memory).run();
}

class CudnnAttention : public testing::Test {
 protected:
  void SetUp() override {
    // Before anyone looks for the real one.
    void* library = ::dlopen(GNOMON_FAKE_CUDNN, RTLD_NOW);
    ASSERT_NE(library, nullptr) << ::dlerror();
    fake_ = reinterpret_cast<test::FakeCudnn* (*)()>(::dlsym(library, "gnomon_fake_cudnn"))();
    *fake_ = test::FakeCudnn{};
    fake_->run = [this](const test::FakeRun& run) {
      runs_.push_back(run);
      do_by_the_book(run);
    };
  }
  std::unique_ptr<Attention> make(bool only, int64_t matrix_bytes_most = int64_t{1} << 30) {
    return make_cudnn_attention(only, machine_.memory(), stream_, warn(), matrix_bytes_most);
  }
  std::function<void(const std::string&)> warn() {
    return [this](const std::string& text) { warnings_.push_back(text); };
  }
  AttentionCheck check(Attention& attention, const std::vector<AttentionCase>& cases) {
    const std::vector<AttentionCandidate> candidates{
        {"own", &machine_.attention(), &machine_.memory(), nullptr},
        {"cuDNN", &attention, &machine_.memory(), stream_}};
    return check_attention(candidates, cases, {.difference_most = 2e-5},
                           [](const AttentionCase&, size_t, size_t) {});
  }

  test::FakeCudnn* fake_ = nullptr;
  test::EmulatedMachine machine_;
  Stream stream_ = reinterpret_cast<Stream>(0x1234);
  std::vector<test::FakeRun> runs_;
  std::vector<std::string> warnings_;
};

TEST_F(CudnnAttention, GivesWhatOurOwnGives) {
  const auto attention = make(true);
  const AttentionCheck found =
      check(*attention, {{1, 12, 1, 1, 8}, {2, 9, 4, 2, 8}, {3, 5, 6, 3, 16}});
  EXPECT_TRUE(found.holds()) << attention_check_in_words(found);
  EXPECT_THAT(warnings_, ElementsAre());
  for (const test::FakeRun& run : runs_) {
    EXPECT_EQ(run.stream, stream_);
    EXPECT_NE(run.workspace, nullptr);
  }
}

TEST_F(CudnnAttention, InPartsTheResultIsTheSame) {
  const AttentionCase problem{3, 8, 6, 3, 8};
  const AttentionShape shape = problem.shape();
  const int64_t group = attention_matrix_bytes(shape) / 9;
  for (const auto& [bytes_most, runs] : {std::pair{6 * group, 2}, {3 * group, 3}, {group, 9}}) {
    const auto attention = make(true, bytes_most);
    runs_.clear();
    const AttentionCheck found = check(*attention, {problem});
    EXPECT_TRUE(found.holds()) << attention_check_in_words(found);
    const auto backward = std::ranges::count_if(runs_, is_backward);
    EXPECT_EQ(backward, runs * (std::ssize(runs_) - backward)) << "for each run forward";
  }
}

TEST_F(CudnnAttention, PlansAndWorkspaceAreMadeOnceAndGivenBack) {
  const AttentionShape shape = AttentionCase{5, 8, 4, 2, 8}.shape();
  {
    const auto attention = make(true, 2 * attention_matrix_bytes(shape) / 5);
    fake_->plans = 0;
    fake_->workspace_bytes = 4096;
    attention->prepare(shape);
    EXPECT_EQ(fake_->plans, 3) << "forward, two sequences, the last one";
    attention->prepare(shape);
    EXPECT_EQ(fake_->plans, 3);
    const int descriptors = fake_->descriptors;
    const AttentionCheck found = check(*attention, {{5, 8, 4, 2, 8}});
    EXPECT_TRUE(found.holds()) << attention_check_in_words(found);
    EXPECT_EQ(fake_->plans, 3);
    EXPECT_EQ(fake_->descriptors, descriptors);
    for (const test::FakeRun& run : runs_) EXPECT_EQ(run.workspace, runs_[0].workspace);
  }
  EXPECT_EQ(fake_->handles, 0);
  EXPECT_EQ(fake_->descriptors, 0);
}

TEST_F(CudnnAttention, AShapeThatIsRefusedGoesToOurOwnWithOneWarning) {
  const AttentionCase refused{1, 9, 2, 1, 24}, taken{1, 9, 2, 1, 16};
  fake_->refuses = [](const test::FakeTensor& q) { return q.sizes[3] == 24; };
  const auto attention = make(false);
  const AttentionCheck found = check(*attention, {refused, taken});
  EXPECT_TRUE(found.holds()) << attention_check_in_words(found);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("1 sequences of 9 tokens, 2 heads of 24 over"),
                                           HasSubstr("no kernel"))));
  EXPECT_FALSE(runs_.empty());
  for (const test::FakeRun& run : runs_) EXPECT_EQ(run.tensors.at(kQ + 1).sizes[3], 16);
  EXPECT_THAT(attention->name(), HasSubstr("cuDNN 9.19.0 where it takes the shape"));
}

TEST_F(CudnnAttention, WhereOnlyCudnnIsWantedARefusalIsAnError) {
  fake_->refuses = [](const test::FakeTensor& q) { return q.sizes[3] == 24; };
  const auto attention = make(true);
  for (int i = 0; i < 2; ++i) {
    try {
      attention->prepare(AttentionCase{1, 9, 2, 1, 24}.shape());
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("2 heads of 24"), HasSubstr("GNOMON_ATTENTION")));
    }
  }
  AttentionShape crooked = AttentionCase{1, 8, 2, 1, 16}.shape();
  crooked.stride_kv += 4;
  EXPECT_THROW(attention->prepare(crooked), Error);
}

TEST_F(CudnnAttention, AKernelThatDoesNotRepeatItsBitsIsNotUsed) {
  fake_->notes = {kNoteTensorCore};
  EXPECT_NO_THROW(make(true)->prepare(AttentionCase{1, 9, 2, 1, 16}.shape()));
  const auto attention = make(false);
  fake_->notes.push_back(kNoteNondeterministic);
  const AttentionCheck found = check(*attention, {{1, 9, 2, 1, 16}});
  EXPECT_TRUE(found.holds()) << attention_check_in_words(found);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("other bits each time")));
  EXPECT_TRUE(runs_.empty());
}

TEST_F(CudnnAttention, TokensThatLeaveStatisticsUnalignedAreRefusedInParts) {
  const AttentionShape shape = AttentionCase{2, 7, 3, 3, 8}.shape();
  EXPECT_NO_THROW(make(true)->prepare(shape)) << "whole";
  EXPECT_THROW(make(true, 1)->prepare(shape), Error);
}

TEST_F(CudnnAttention, AFaultThatIsNoRefusalDoesNotChangeWhoComputes) {
  const auto attention = make(false);
  const AttentionShape shape = AttentionCase{1, 9, 2, 1, 16}.shape();
  fake_->plan_status = kInternalError;
  EXPECT_THROW(attention->prepare(shape), CudaError);
  fake_->plan_status = 0;
  EXPECT_NO_THROW(attention->prepare(shape));
  EXPECT_THAT(warnings_, ElementsAre());
}

TEST_F(CudnnAttention, ALibraryThatIsNotWholeIsToldOnceAtTheStart) {
  fake_->plan_status = kNoRuntimeLibrary;
  const auto attention = make_attention(AttentionChoice::kBest, machine_.memory(), stream_, warn());
  EXPECT_EQ(attention->name(), "own attention");
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("Our own attention is used"),
                                           HasSubstr("the fake says no"))));
  EXPECT_THROW(make_attention(AttentionChoice::kCudnn, machine_.memory(), stream_, warn()), Error);
  fake_->plan_status = kNotSupportedStatus;
  EXPECT_THROW(make_attention(AttentionChoice::kCudnn, machine_.memory(), stream_, warn()), Error);
}

TEST_F(CudnnAttention, AnOldLibraryIsNotUsed) {
  fake_->version = 91501;
  const auto attention = make_attention(AttentionChoice::kBest, machine_.memory(), stream_, warn());
  EXPECT_EQ(attention->name(), "own attention");
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("cuDNN 9.15.1 is too old: 9.16")));
  EXPECT_THROW(make_attention(AttentionChoice::kCudnn, machine_.memory(), stream_, warn()), Error);
}

TEST_F(CudnnAttention, OurOwnIsUsedInSilenceWhenItIsAskedFor) {
  const auto attention = make_attention(AttentionChoice::kOwn, machine_.memory(), stream_, warn());
  EXPECT_EQ(attention->name(), "own attention");
  EXPECT_EQ(fake_->plans, 0);
  EXPECT_THAT(warnings_, ElementsAre());
}

TEST(AttentionChoiceOf, IsReadAndAnythingElseRefused) {
  EXPECT_EQ(attention_choice(nullptr), AttentionChoice::kBest);
  EXPECT_EQ(attention_choice(""), AttentionChoice::kBest);
  EXPECT_EQ(attention_choice("own"), AttentionChoice::kOwn);
  EXPECT_EQ(attention_choice("cudnn"), AttentionChoice::kCudnn);
  try {
    attention_choice("fastest");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("GNOMON_ATTENTION"), HasSubstr("own or cudnn")));
  }
}

}  // namespace
}  // namespace gnomon::cuda
