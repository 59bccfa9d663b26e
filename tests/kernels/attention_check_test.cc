// What `gnomon-gpu-check attention` will say of a device, of our own attention by emulation.
#include <gtest/gtest.h>

#include "lab/attention/check.h"
#include "tests/engine/emulated_machine.h"

namespace gnomon {
namespace {

// Our own, made wrong in one way.
class Spoilt final : public cuda::Attention {
 public:
  enum class How { kNot, kFar, kRestless, kRefuses };
  explicit Spoilt(How how) : how_(how) {}
  std::string name() const override { return "spoilt"; }
  void prepare(const AttentionShape&) override {
    if (how_ == How::kRefuses) throw Error("not this shape");
  }
  void forward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v, bf16* o,
               std::byte* saved, cuda::Stream stream) override {
    own_.forward(shape, q, k, v, o, saved, stream);
  }
  void backward(const AttentionShape& shape, const bf16* q, const bf16* k, const bf16* v,
                const bf16* o, const bf16* d_o, bf16* dq, bf16* dk, bf16* dv,
                const std::byte* saved, std::byte* scratch, cuda::Stream stream) override {
    own_.backward(shape, q, k, v, o, d_o, dq, dk, dv, saved, scratch, stream);
    bf16& last = dv[(shape.sequences * shape.tokens - 1) * shape.stride_dkv +
                    shape.kv_heads * shape.head_dim - 1];
    if (how_ == How::kFar) last = to_bf16(to_float(last) + 5);
    if (how_ == How::kRestless) last.bits = static_cast<uint16_t>(last.bits ^ (++calls_ & 1));
  }

 private:
  How how_;
  int calls_ = 0;
  cuda::OwnAttention own_;
};

AttentionCheck check_with(Spoilt::How how) {
  test::EmulatedMachine own, other;
  Spoilt spoilt(how);
  const std::vector<AttentionCandidate> candidates{{"own", &own.attention(), &own.memory(), {}},
                                                   {"other", &spoilt, &other.memory(), {}}};
  return check_attention(candidates, {{2, 17, 4, 2, 16}, {1, 12, 2, 2, 24}},
                         {.threads = 2, .repeats = 1}, [](const AttentionCase&, size_t, size_t) {});
}

TEST(AttentionCheck, HoldsForOurOwnAttention) {
  const AttentionCheck check = check_with(Spoilt::How::kNot);
  EXPECT_TRUE(check.holds()) << attention_check_in_words(check);
  ASSERT_EQ(check.cases.size(), 2u);
  for (const AttentionCheckCase& one : check.cases) {
    for (const AttentionFinding& finding : one.findings) {
      EXPECT_LT(finding.from_exact.largest(), 1e-5);
      EXPECT_GT(finding.from_exact.o, 0);
      EXPECT_LT(std::abs(finding.from_first.largest()), 1e-12);
      EXPECT_GT(finding.forward_tflops, 0);
    }
  }
  const boost::json::object json = attention_check_to_json(check);
  EXPECT_TRUE(json.at("holds").as_bool());
  EXPECT_EQ(json.at("cases").as_array().size(), 2u);
}

TEST(AttentionCheck, OneWrongValueIsSeen) {
  const AttentionCheck check = check_with(Spoilt::How::kFar);
  EXPECT_FALSE(check.holds());
  EXPECT_GT(check.cases[0].findings[1].from_exact.dv, 1e-4);
  EXPECT_GT(check.cases[0].findings[1].from_first.dv, 1e-4);
  EXPECT_LT(check.cases[0].findings[1].from_exact.dk, 1e-5);
}

TEST(AttentionCheck, OneBitThatChangesIsSeen) {
  const AttentionCheck check = check_with(Spoilt::How::kRestless);
  EXPECT_FALSE(check.holds());
  EXPECT_FALSE(check.cases[0].findings[1].repeats);
  EXPECT_TRUE(check.cases[0].findings[0].repeats);
}

TEST(AttentionCheck, AnErrorIsToldAndTheOthersAreStillCompared) {
  const AttentionCheck check = check_with(Spoilt::How::kRefuses);
  EXPECT_FALSE(check.holds());
  EXPECT_NE(attention_check_in_words(check).find("not this shape"), std::string::npos);
  EXPECT_TRUE(check.cases[1].findings[0].repeats);
}

}  // namespace
}  // namespace gnomon
