// A file by cuDNN's name that is none of it: a run goes on with our own attention.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/shared_library.h"
#include "kernels/cuda/attention_choice.h"
#include "tests/engine/emulated_machine.h"

namespace gnomon::cuda {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(CudnnMissing, IsWarnedOfOnceAndOurOwnAttentionIsUsed) {
  ASSERT_NE(::dlopen(GNOMON_EMPTY_CUDNN, RTLD_NOW), nullptr) << ::dlerror();
  test::EmulatedMachine machine;
  std::vector<std::string> warnings;
  const auto warn = [&](const std::string& text) { warnings.push_back(text); };
  const auto attention = make_attention(AttentionChoice::kBest, machine.memory(), nullptr, warn);
  EXPECT_EQ(attention->name(), "own attention");
  EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr("Our own attention is used"),
                                          HasSubstr("libcudnn.so.9 has no function"))));
  EXPECT_THROW(make_attention(AttentionChoice::kCudnn, machine.memory(), nullptr, warn),
               MissingLibrary);
}

}  // namespace
}  // namespace gnomon::cuda
