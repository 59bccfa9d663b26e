// A ledger whose disk stands still for longer than leases last: what the daemon has heard meanwhile
// counts as heard, no lease of a verifier that lives ends, and the writer's queue stays short.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include <atomic>
#include <map>
#include <mutex>
#include <thread>

#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kVerifiers = 40;
constexpr int kFinishing = 10;  // of them; they hand in their results while the ledger stands still
constexpr auto kStall = 4s;     // four times as long as a lease lasts

class StalledWriterTest : public ::testing::Test {
 protected:
  StalledWriterTest() {
    daemon.start();
    for (int i = 0; i < kVerifiers; ++i) {
      FakeTrainer trainer(daemon.url());
      trainer.begin(test_registration(fmt::format("run-of-{}", i)));
      trainer.train(1, 5);
      verifiers.push_back(std::make_unique<FakeVerifier>(daemon.url(), fmt::format("v:{}", i)));
      verifiers.back()->connect(daemon.url());
    }
  }
  // As a verifier beats: a request that takes longer than a third of the lease's time is given up.
  void beat(size_t which) {
    HttpClient client = daemon.client();
    const Lease& lease = leases[which];
    while (!over) {
      try {
        count(client.request("POST", fmt::format("/v1/leases/{}/heartbeat", lease.lease),
                             to_json(LeaseHeartbeat{lease.token, 1}), 400ms));
      } catch (const ConnectionError&) {
        ++given_up;
      }
      std::this_thread::sleep_for(300ms);
    }
  }
  // Once and for all, however long it takes.
  void finish(size_t which) {
    HttpClient client = daemon.client();
    const Lease& lease = leases[which];
    count(client.request("POST", fmt::format("/v1/leases/{}/complete", lease.lease),
                         to_json(verifiers[which]->result(lease, 0)), 30s));
  }
  void count(const HttpResponse& answer) {
    const std::lock_guard lock(mutex);
    ++statuses[answer.status];
    if (answer.status != 200) last_refusal = answer.body;
  }
  double metric(const std::string& name) {
    const std::string text = "\n" + daemon.client().checked("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }

  test::DaemonProcess daemon{
      {},
      "[window]\nevery = 5\nsteps = 5\n[verifier]\nlease_ttl_seconds = 1.0\nattempts_max = 2\n"
      "[instrument]\nevery = 0\n[triage]\npairs = 0\n[attribution]\nscores = false\n"};
  std::vector<std::unique_ptr<FakeVerifier>> verifiers;
  std::vector<Lease> leases;
  std::atomic<bool> over = false;
  std::atomic<int> given_up = 0;
  std::mutex mutex;
  std::map<int, int> statuses;
  std::string last_refusal;
};

TEST_F(StalledWriterTest, NoLeaseOfALivingVerifierEndsAndTheQueueStaysShort) {
  leases.resize(kVerifiers);
  std::vector<std::thread> threads;
  for (size_t i = kVerifiers; i-- > 0;) {  // each beats as soon as it has its lease
    leases[i] = verifiers[i]->lease().value();
    if (i >= kFinishing) threads.emplace_back([this, i] { beat(i); });
  }
  double longest = 0;
  {
    SQLite::Database other(daemon.ledger().string(), SQLite::OPEN_READWRITE, 5000);
    other.exec("BEGIN IMMEDIATE");
    for (size_t i = 0; i < kFinishing; ++i) threads.emplace_back([this, i] { finish(i); });
    const auto end = Clock::now() + kStall;
    while (Clock::now() < end) {
      longest = std::max(longest, metric("gnomon_ledger_queue_length"));
      std::this_thread::sleep_for(200ms);
    }
    other.exec("ROLLBACK");
  }
  std::this_thread::sleep_for(1500ms);
  over = true;
  for (std::thread& thread : threads) thread.join();
  for (size_t i = kFinishing; i < kVerifiers; ++i) finish(i);
  EXPECT_EQ(statuses.size(), 1u) << last_refusal;
  EXPECT_EQ(statuses[503], 0);
  EXPECT_EQ(statuses[409], 0);
  EXPECT_GE(given_up, kVerifiers - kFinishing) << "the ledger did not stand still";
  EXPECT_EQ(metric("gnomon_leases_total{outcome=\"expired\"}"), 0);
  EXPECT_EQ(metric("gnomon_leases_total{outcome=\"completed\"}"), kVerifiers);
  EXPECT_LT(longest, 3 * kVerifiers)
      << "one write of each lease may wait, and a few of the daemon's";
}

// Those that are silent end all the same, soon after.
TEST_F(StalledWriterTest, ASilentVerifierLosesItsLease) {
  for (auto& verifier : verifiers) leases.push_back(verifier->lease().value());
  double longest = 0;
  {
    SQLite::Database other(daemon.ledger().string(), SQLite::OPEN_READWRITE, 5000);
    other.exec("BEGIN IMMEDIATE");
    const auto end = Clock::now() + kStall;
    while (Clock::now() < end) {
      longest = std::max(longest, metric("gnomon_ledger_queue_length"));
      std::this_thread::sleep_for(200ms);
    }
    other.exec("ROLLBACK");
  }
  EXPECT_LT(longest, 2 * kVerifiers);
  EXPECT_TRUE(test::eventually([this] {
    return metric("gnomon_leases_total{outcome=\"expired\"}") == kVerifiers;
  })) << metric("gnomon_leases_total{outcome=\"expired\"}");
}

}  // namespace
}  // namespace gnomon
