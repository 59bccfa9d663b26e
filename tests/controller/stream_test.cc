// The stream of events: old rows go, and a client that they are missing for is told.
#include <SQLiteCpp/SQLiteCpp.h>
#include <fmt/format.h>

#include "tests/controller/api_fixture.h"
#include "tests/controller/raw_connection.h"

namespace gnomon {
namespace {

using test::eventually;
using ::testing::HasSubstr;

class StreamTest : public ApiTest {
 protected:
  StreamTest() {
    trainer.begin();
    trainer.train(1, 20);  // a run and its windows: several rows
  }
  int64_t stream_number(const char* sql) {
    SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READONLY);
    return database.execAndGet(sql).getInt64();
  }
  // Makes all rows up to `last` as old as a week and a day, by hand, and starts the daemon again.
  void restart_with_old_rows(int64_t last) {
    daemon.kill();
    {
      SQLite::Database database(daemon.ledger().string(), SQLite::OPEN_READWRITE);
      database.exec(fmt::format("UPDATE stream SET time = time - 8 * 86400 WHERE id <= {}", last));
    }
    daemon.start();
  }
  std::string events(const std::string& query, const std::string& until) {
    RawConnection stream(daemon.port());
    stream.send(fmt::format("GET /v1/events{} HTTP/1.1\r\nHost: localhost\r\n\r\n", query));
    return stream.read_until(until);
  }
  FakeTrainer trainer{daemon.url()};
};

TEST_F(StreamTest, RowsOlderThanAWeekGoAndAClientThatMissesThemIsTold) {
  ASSERT_GE(stream_number("SELECT max(id) FROM stream"), 4);
  EXPECT_THAT(events("?after=0", "id: 1\n"), HasSubstr("200 OK"));
  restart_with_old_rows(2);
  ASSERT_TRUE(eventually([&] { return stream_number("SELECT min(id) FROM stream") == 3; }));
  Refused refusal = refused("GET", "/v1/events?after=1");
  EXPECT_EQ(refusal.status, 410);
  EXPECT_THAT(refusal.detail,
              HasSubstr("events after 1 were asked for; there are those from 3 to"));
  EXPECT_THAT(refusal.accepted, HasSubstr("an id from 2 to"));
  RawConnection resumed(daemon.port());
  resumed.send("GET /v1/events HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 1\r\n\r\n");
  EXPECT_THAT(resumed.read_until("accepted"), HasSubstr("410"));
  EXPECT_THAT(events("?after=2", "id: 3\n"), HasSubstr("id: 3\n")) << "nothing is missing for it";
}

TEST_F(StreamTest, TheNewestRowStaysHoweverOldSoThatIdsGoOn) {
  int64_t newest = stream_number("SELECT max(id) FROM stream");
  restart_with_old_rows(newest);
  ASSERT_TRUE(eventually([&] { return stream_number("SELECT count(*) FROM stream") == 1; }));
  FakeTrainer again(daemon.url());
  again.begin(test_registration("another", "1"));
  EXPECT_GT(stream_number("SELECT max(id) FROM stream"), newest);
  EXPECT_THAT(events(fmt::format("?after={}", newest), "run-2"),
              HasSubstr(fmt::format("id: {}\n", newest + 1)));
}

TEST_F(StreamTest, EventsAndAuditKeepTheirRows) {
  int64_t events_before = stream_number("SELECT count(*) FROM events");
  restart_with_old_rows(2);
  ASSERT_TRUE(eventually([&] { return stream_number("SELECT min(id) FROM stream") == 3; }));
  EXPECT_EQ(stream_number("SELECT count(*) FROM events"), events_before);
}

TEST_F(StreamTest, AnIdThatThisLedgerNeverGaveIsRefused) {
  EXPECT_EQ(refused("GET", "/v1/events?after=100000").status, 410);
  EXPECT_EQ(refused("GET", fmt::format("/v1/events?after={}", INT64_MAX)).status, 410);
}

}  // namespace
}  // namespace gnomon
