// Whose bits a replay's are compared with: those of the attempt, whose fingerprint may be its own.
#include <SQLiteCpp/SQLiteCpp.h>

#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using ::testing::HasSubstr;

class AttemptFingerprintTest : public ApiTest {
 protected:
  static Fingerprint other_threads() {
    Fingerprint fingerprint = test_fingerprint();
    fingerprint.threads += 1;
    return fingerprint;
  }
  // True when the core was told that a replay by a verifier with test_fingerprint() may be compared
  // bit for bit with the attempt.
  bool compared(std::optional<Fingerprint> registered, std::optional<Fingerprint> of_attempt) {
    RunRegistration registration = test_registration();
    registration.fingerprint = *registered;
    trainer.run = from_json<RunRegistered>(
                      trainer.client().checked("POST", "/v1/runs", to_json(registration)).body)
                      .run;
    trainer.client().checked("POST", trainer.path("/attempts"),
                             to_json(AttemptStart{1, 0, "start", 1, 1.0, of_attempt}));
    trainer.client().checked("POST", trainer.path("/checkpoints"), to_json(test_checkpoint(0)));
    trainer.train(1, 5);
    FakeVerifier verifier(daemon.url());
    verifier.complete(verifier.lease().value(), 0.001);
    SQLite::Database ledger(daemon.ledger().string(), SQLite::OPEN_READONLY);
    return ledger
               .execAndGet(
                   "SELECT body ->> '$.fingerprint_equal' FROM events WHERE type = "
                   "'replay_finished'")
               .getInt() == 1;
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(AttemptFingerprintTest, AnAttemptWithoutOneHasTheRegistrations) {
  EXPECT_TRUE(compared(test_fingerprint(), std::nullopt));
  EXPECT_TRUE(get(trainer.path("")).at("attempts").at(0).at("fingerprint").is_null());
}

TEST_F(AttemptFingerprintTest, AnotherOneOfTheAttemptCountsAgainstTheRegistrations) {
  EXPECT_FALSE(compared(test_fingerprint(), other_threads()));
  EXPECT_EQ(get(trainer.path("")).at("attempts").at(0).at("fingerprint").at("threads").as_int64(),
            2);
}

TEST_F(AttemptFingerprintTest, TheAttemptsOwnCountsForTheReplay) {
  EXPECT_TRUE(compared(other_threads(), test_fingerprint()));
}

TEST_F(AttemptFingerprintTest, AnAttemptThatChangesItsFingerprintIsRefused) {
  compared(test_fingerprint(), other_threads());
  std::string path = trainer.path("/attempts");
  HttpClient client = daemon.client();
  client.checked("POST", path, to_json(AttemptStart{1, 0, "start", 1, 1.0, other_threads()}));
  Refused refusal =
      refused("POST", path, to_json(AttemptStart{1, 0, "start", 1, 1.0, test_fingerprint()}));
  EXPECT_EQ(refusal.status, 409);
  EXPECT_THAT(refusal.detail, HasSubstr("fingerprint"));
}

}  // namespace
}  // namespace gnomon
