// A daemon that is left running: backups, rows that are kept for a time only, pages that go bad, a
// disk that is full for a while.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <fstream>
#include <future>
#include <thread>

#include "base/files.h"
#include "storage/ledger_integrity.h"
#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using test::DaemonProcess;
using test::EndedProcess;
using test::eventually;
using test::TemporaryDirectory;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A daemon with a configuration of its own.
class DurabilityTest : public ::testing::Test {
 protected:
  void start(const std::string& config) {
    std::filesystem::create_directories(folder / "backups");
    write_file_atomically(folder / "gnomond.toml", config);
    daemon.emplace(std::vector<std::string>{"--config", (folder / "gnomond.toml").string()},
                   test_policy());
    daemon->start();
  }
  double metric(const std::string& name) const {
    const std::string text = "\n" + daemon->client().checked("GET", "/metrics").body;
    const size_t at = text.find("\n" + name + " ");
    return at == std::string::npos ? -1 : std::stod(text.substr(at + name.size() + 2));
  }
  std::vector<std::filesystem::path> backups() const {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "backups")) {
      found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }
  int64_t number(const std::string& sql) const {
    SQLite::Database database(daemon->ledger().string(), SQLite::OPEN_READONLY, 5000);
    return database.execAndGet(sql).getInt64();
  }

  TemporaryDirectory folder;
  std::optional<DaemonProcess> daemon;
};

TEST_F(DurabilityTest, ABackupThatIsAskedForIsGoodAndTheNewestStay) {
  start("[backup]\nfolder = \"backups\"\nkeep = 2\n");
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  trainer.train(1, 20);
  HttpClient client = daemon->client();
  std::string newest;
  for (int i = 0; i < 3; ++i) {
    const boost::json::value made =
        boost::json::parse(client.checked("POST", "/v1/backups", "{}").body);
    newest = std::string(made.at("name").as_string());
    EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(folder / "backups" / newest)),
              made.at("bytes").as_int64());
  }
  ASSERT_EQ(backups().size(), 2u);
  EXPECT_EQ(backups().back().filename(), newest);
  EXPECT_TRUE(examine_closed_ledger(backups().back()).good());
  SQLite::Database copy(backups().back().string(), SQLite::OPEN_READONLY);
  EXPECT_EQ(copy.execAndGet("SELECT count(*) FROM steps").getInt(), 20);
  EXPECT_EQ(metric("gnomon_ledger_backups_total{outcome=\"completed\"}"), 3);
  EXPECT_GT(metric("gnomon_ledger_backup_last_success_timestamp_seconds"), 1.5e9);
}

TEST_F(DurabilityTest, BackupsAreMadeFromTimeToTimeAndAfterARestartOnlyWhenDue) {
  start("[backup]\nfolder = \"backups\"\nevery_seconds = 1.0\nkeep = 3\n");
  EXPECT_TRUE(eventually(
      [&] { return metric(R"(gnomon_ledger_backups_total{outcome="completed"})") >= 5; }));
  EXPECT_LE(backups().size(), 4u);  // one may just have been made
  write_file_atomically(folder / "gnomond.toml",
                        "[backup]\nfolder = \"backups\"\nevery_seconds = 3600.0\n");
  EXPECT_EQ(daemon->stop(), 0);
  daemon->start();
  EXPECT_GT(metric("gnomon_ledger_backup_last_success_timestamp_seconds"), 1.5e9);
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_EQ(metric(R"(gnomon_ledger_backups_total{outcome="completed"})"), 0);
}

// The clock was ahead when these were made.
TEST_F(DurabilityTest, BackupsOfTheFutureStandInNobodysWay) {
  std::filesystem::create_directory(folder / "backups");
  for (const char* name :
       {"ledger-29990101T000000.000Z.sqlite", "ledger-29990102T000000.000Z.sqlite"}) {
    const std::filesystem::path file = folder / "backups" / name;
    write_file_atomically(file, "a ledger");
    std::filesystem::last_write_time(
        file, std::filesystem::file_time_type::clock::now() + std::chrono::hours(24 * 365));
  }
  start("[backup]\nfolder = \"backups\"\nevery_seconds = 3600.0\nkeep = 2\n");
  EXPECT_TRUE(eventually(
      [&] { return metric(R"(gnomon_ledger_backups_total{outcome="completed"})") == 1; }));
  // The first one may just be ending.
  EXPECT_TRUE(eventually(
      [&] { return daemon->client().request("POST", "/v1/backups", "{}").status == 200; }));
  for (const std::filesystem::path& backup : backups())
    EXPECT_TRUE(examine_closed_ledger(backup).good()) << backup;
  EXPECT_EQ(backups().size(), 2u);
}

TEST_F(DurabilityTest, ABackupThatFailsHarmsNothing) {
  start("[backup]\nfolder = \"backups\"\n");
  HttpClient client = daemon->client();
  client.checked("POST", "/v1/backups", "{}");
  const auto before = backups();
  std::filesystem::rename(folder / "backups", folder / "gone");
  const HttpResponse refused = client.request("POST", "/v1/backups", "{}");
  EXPECT_EQ(refused.status, 500);
  const std::string why = "there is no folder " + (folder / "backups").string();
  EXPECT_THAT(refused.body, AllOf(HasSubstr("No backup was made"), HasSubstr(why)));
  EXPECT_THAT(daemon->log(), AllOf(HasSubstr("no backup was made: " + why),
                                   HasSubstr("none is tried until somebody asks")));
  std::filesystem::rename(folder / "gone", folder / "backups");
  EXPECT_EQ(metric(R"(gnomon_ledger_backups_total{outcome="failed"})"), 1);
  EXPECT_EQ(backups(), before);
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  EXPECT_EQ(trainer.post_steps({{test_step(1)}}).accepted, 1);
  client.checked("POST", "/v1/backups", "{}");
}

TEST_F(DurabilityTest, TheLogSaysWhenABackupThatFailedIsTriedAgain) {
  start("[backup]\nfolder = \"backups\"\nevery_seconds = 3600.0\n");
  EXPECT_TRUE(eventually([&] { return !backups().empty(); }));
  std::filesystem::rename(folder / "backups", folder / "gone");
  daemon->client().request("POST", "/v1/backups", "{}");
  EXPECT_TRUE(eventually(
      [&] { return daemon->log().find("the next try is in 10m 00s") != std::string::npos; }));
}

TEST_F(DurabilityTest, WithoutAFolderThereAreNoBackups) {
  start("");
  HttpClient client = daemon->client();
  const HttpResponse answer = client.request("POST", "/v1/backups", "{}");
  EXPECT_EQ(answer.status, 409);
  EXPECT_THAT(answer.body, HasSubstr("[backup] folder"));
}

TEST_F(DurabilityTest, OldRowsGoAndWhatDecisionsNeedStays) {
  start("[retention]\nsteps_days = 1.0\nevents_days = 1.0\nreplay_steps_days = 1.0\n");
  FakeTrainer ended(daemon->url()), live(daemon->url());
  for (FakeTrainer* trainer : {&ended, &live}) {
    trainer->begin(test_registration(trainer == &ended ? "ended" : "live", "1"));
    trainer->train(1, 20);
  }
  daemon->kill();
  {
    SQLite::Database database(daemon->ledger().string(), SQLite::OPEN_READWRITE);
    database.exec(
        "UPDATE runs SET state = 'completed', finished_at = registered_at - 2 * 86400 WHERE id = "
        "1");
  }
  const int64_t audit = number("SELECT count(*) FROM audit");
  const int64_t windows = number("SELECT count(*) FROM windows");
  daemon->start();
  EXPECT_TRUE(eventually([&] { return number("SELECT count(*) FROM steps WHERE run = 1") == 1; }));
  EXPECT_TRUE(eventually([&] { return number("SELECT count(*) FROM events WHERE run = 1") == 0; }));
  EXPECT_EQ(number("SELECT step FROM steps WHERE run = 1"), 20) << "the newest";
  EXPECT_EQ(number("SELECT count(*) FROM steps WHERE run = 2"), 20);
  EXPECT_GT(number("SELECT count(*) FROM events WHERE run = 2"), 5);
  EXPECT_EQ(number("SELECT count(*) FROM audit"), audit);
  EXPECT_EQ(number("SELECT count(*) FROM windows"), windows);
  EXPECT_EQ(number("SELECT steps FROM step_totals WHERE run = 1"), 20);
  EXPECT_EQ(metric("gnomon_ledger_rows_deleted_total{table=\"steps\"}"), 19);
}

TEST_F(DurabilityTest, DamagedPagesMakeTheDaemonUnready) {
  start("");
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  for (int64_t step = 1; step <= 200; step += 20) trainer.train(step, step + 19);
  EXPECT_EQ(daemon->stop(), 0);
  int64_t page = 0;
  {
    SQLite::Database database(daemon->ledger().string(), SQLite::OPEN_READONLY);
    page =
        database.execAndGet("SELECT rootpage FROM sqlite_schema WHERE name = 'scores'").getInt64();
  }
  std::fstream file(daemon->ledger(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp((page - 1) * 4096);
  file << std::string(4096, '\x55');
  file.close();
  daemon->start();
  HttpClient client = daemon->client();
  EXPECT_TRUE(eventually([&] { return client.request("GET", "/readyz").status == 503; }));
  EXPECT_THAT(client.request("GET", "/readyz").body,
              AllOf(HasSubstr("ledger_integrity"), HasSubstr("restore a backup")));
  EXPECT_EQ(metric("gnomon_ledger_integrity{state=\"failed\"}"), 1);
  EXPECT_THAT(daemon->log(), HasSubstr("gnomon ledger restore"));
}

// The limit of file sizes is a real fault of write(2), and can be put on and taken off a process
// that runs.
TEST_F(DurabilityTest, ADiskThatIsFullForAWhileCostsOnlyWhatWasRefused) {
  start("");
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  trainer.train(1, 20);
  rlimit before{};
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_FSIZE, nullptr, &before), 0);
  rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_FSIZE, &small, nullptr), 0);
  HttpClient client = daemon->client();
  for (int i = 0; i < 5; ++i) {
    EXPECT_THROW(trainer.post_steps({{test_step(21)}}), Error);
    EXPECT_EQ(client.request("GET", "/readyz").status, 503);
  }
  ASSERT_EQ(::prlimit(daemon->pid(), RLIMIT_FSIZE, &before, nullptr), 0);
  EXPECT_EQ(client.request("GET", "/readyz").status, 200);
  EXPECT_EQ(trainer.post_steps({{test_step(21)}}).accepted, 1) << "it was not half there";
  EXPECT_EQ(number("SELECT count(*) FROM steps"), 21);
  EXPECT_EQ(metric("gnomon_run_steps_total{run=\"test/1\"}"), 21);
}

TEST_F(DurabilityTest, WhoAsksForTheAuditLogGetsTheNewestRows) {
  start("");
  FakeTrainer trainer(daemon->url());
  trainer.begin();
  HttpClient client = daemon->client();
  for (const char* mode : {"observe", "advise", "enforce"}) {
    client.checked("PUT", trainer.path("/policy"), fmt::format("mode = \"{}\"\n", mode));
  }
  const boost::json::value rows =
      boost::json::parse(client.checked("GET", "/v1/audit?newest=2").body);
  ASSERT_EQ(rows.as_array().size(), 2u);
  EXPECT_THAT(std::string(rows.at(1).at("detail").as_string()), HasSubstr("enforce"));
  EXPECT_EQ(rows.at(1).at("hash").as_string().size(), 64u);
  EXPECT_TRUE(
      boost::json::parse(client.checked("GET", "/v1/audit?run=run-7").body).as_array().empty());
}

// Something else writes to the ledger, so that the daemon's writer waits for it.
TEST_F(DurabilityTest, BeyondTheWritesThatMayWaitRequestsAre503AndTheOthersAreRecorded) {
  start("[limits]\nqueued_writes = 2\n");
  const auto post = [this](int i) {
    HttpClient client = daemon->client();
    return client.request("POST", "/v1/runs",
                          to_json(test_registration("many", std::to_string(i))));
  };
  constexpr int kClients = 12;
  constexpr int kRefusedAtLeast = kClients - 4;  // two are at work, two wait
  std::atomic<int> refused = 0;
  std::vector<std::future<HttpResponse>> answers;
  {
    SQLite::Database other(daemon->ledger().string(), SQLite::OPEN_READWRITE, 5000);
    SQLite::Transaction writing(other, SQLite::TransactionBehavior::IMMEDIATE);
    for (int i = 0; i < kClients; ++i) {
      answers.push_back(std::async(std::launch::async, [&, i] {
        HttpResponse answer = post(i);
        if (answer.status == 503) ++refused;
        return answer;
      }));
    }
    EXPECT_TRUE(eventually([&] { return refused >= kRefusedAtLeast; }));
  }
  std::vector<int> again;
  for (int i = 0; i < kClients; ++i) {
    const HttpResponse answer = answers[static_cast<size_t>(i)].get();
    if (answer.status == 200) continue;
    EXPECT_EQ(answer.status, 503) << answer.body;
    EXPECT_GE(answer.retry_after, 1);
    EXPECT_THAT(answer.body, HasSubstr("queue of writes is full"));
    EXPECT_EQ(number(fmt::format("SELECT count(*) FROM runs WHERE job_id = '{}'", i)), 0);
    again.push_back(i);
  }
  for (const int i : again) EXPECT_EQ(post(i).status, 200);
  EXPECT_LT(refused, kClients);
  EXPECT_EQ(number("SELECT count(*) FROM runs"), kClients);
}

}  // namespace
}  // namespace gnomon
