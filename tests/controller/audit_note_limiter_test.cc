#include "controller/api/audit_note_limiter.h"

#include <gmock/gmock.h>

namespace gnomon {
namespace {

using ::testing::EndsWith;

TEST(AuditNoteLimiterTest, ABurstOfAKindIsAdmittedThenOneAMinuteWithACount) {
  AuditNoteLimiter notes;
  const AuditNote note{3, "stale_lease", "lease 1"};
  for (int i = 0; i < 20; ++i) {
    const std::optional<AuditNote> noted = notes.admit(note, 100);
    ASSERT_TRUE(noted.has_value()) << i;
    EXPECT_EQ(noted->detail, "lease 1");
  }
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(notes.admit(note, 110).has_value());
  const std::optional<AuditNote> later = notes.admit(note, 161);
  ASSERT_TRUE(later.has_value());
  EXPECT_EQ(later->run, 3);
  EXPECT_EQ(later->what, "stale_lease");
  EXPECT_THAT(later->detail, EndsWith("; 5 more of this kind before it were not noted"));
  EXPECT_FALSE(notes.admit(note, 162).has_value());
  EXPECT_EQ(notes.admit(note, 222)->detail,
            "lease 1; 1 more of this kind before it were not noted");
}

TEST(AuditNoteLimiterTest, OtherKindsAndOtherRunsHaveTheirOwn) {
  AuditNoteLimiter notes;
  for (int i = 0; i < 30; ++i) notes.admit({3, "stale_lease", ""}, 100);
  EXPECT_FALSE(notes.admit({3, "stale_lease", ""}, 100).has_value());
  EXPECT_TRUE(notes.admit({4, "stale_lease", ""}, 100).has_value());
  EXPECT_TRUE(notes.admit({3, "impossible_ack", ""}, 100).has_value());
  EXPECT_TRUE(notes.admit({std::nullopt, "stale_lease", ""}, 100).has_value());
}

}  // namespace
}  // namespace gnomon
