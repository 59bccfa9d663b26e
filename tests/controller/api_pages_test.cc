// Lists a page at a time: what the header Link says leads through all of them, each row once.
#include <fmt/format.h>

#include "tests/controller/api_fixture.h"

namespace gnomon {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ApiPagesTest : public ApiTest {
 protected:
  ApiPagesTest() {
    trainer.begin();
    trainer.train(1, 20);
  }
  // All pages from `target` on, as their sizes; the rows behind one another in `rows`.
  std::vector<size_t> pages(const std::string& target) {
    HttpClient client = daemon.client();
    std::vector<size_t> sizes;
    rows.clear();
    std::string next = target;
    while (!next.empty() && sizes.size() < 100) {
      const HttpResponse answer = client.checked("GET", next);
      const boost::json::value page = boost::json::parse(answer.body);
      sizes.push_back(page.as_array().size());
      for (const boost::json::value& row : page.as_array()) rows.push_back(row);
      next = answer.next;
    }
    return sizes;
  }
  boost::json::array rows;
  FakeTrainer trainer{daemon.url()};
  FakeVerifier verifier{daemon.url()};
};

TEST_F(ApiPagesTest, NumberedRowsGoOnWithTheNextNumber) {
  const boost::json::value all = get(trainer.path("/windows"));
  ASSERT_EQ(all.as_array().size(), 4u);
  EXPECT_THAT(pages(trainer.path("/windows?limit=3")), ElementsAre(3, 1));
  EXPECT_EQ(rows, all.as_array());
  EXPECT_THAT(pages(trainer.path("/windows?limit=2&from=2")), ElementsAre(2, 1));
  EXPECT_THAT(pages(trainer.path("/windows?limit=4")), ElementsAre(4))
      << "no empty page at the end";
  EXPECT_THAT(pages(trainer.path("/directives?limit=1")), ElementsAre(0));
}

TEST_F(ApiPagesTest, StepsGoOnAcrossAttemptsWithAllThatWasAskedFor) {
  HttpClient client = daemon.client();
  client.checked("POST", trainer.path("/attempts"), to_json(AttemptStart{2, 10, "rollback", 1, 2}));
  trainer.train(11, 17, 2);
  const boost::json::value all = get(trainer.path("/steps"));
  ASSERT_EQ(all.as_array().size(), 27u);
  EXPECT_THAT(pages(trainer.path("/steps?limit=10")), ElementsAre(10, 10, 7));
  EXPECT_EQ(rows, all.as_array());
  const boost::json::value thin = get(trainer.path("/steps?every=3&from=4&to=16"));
  ASSERT_EQ(thin.as_array().size(), 6u) << "6, 9, 12 and 15; 12 and 15 again";
  EXPECT_EQ(thin.at(0).at("step").as_int64(), 6);
  EXPECT_EQ(thin.at(5).at("attempt").as_int64(), 2);
  EXPECT_THAT(pages(trainer.path("/steps?every=3&from=4&to=16&limit=4")), ElementsAre(4, 2));
  EXPECT_EQ(rows, thin.as_array());
  EXPECT_THAT(pages(trainer.path("/steps?attempt=2&limit=5")), ElementsAre(5, 2));
  EXPECT_THAT(pages(trainer.path("/steps?every=9223372036854775807")), ElementsAre(0));
  EXPECT_THAT(pages(trainer.path("/steps?from=9223372036854775807")), ElementsAre(0));
  EXPECT_THAT(pages(trainer.path("/steps?from=9&to=3")), ElementsAre(0));
}

TEST_F(ApiPagesTest, CheckpointsAndShadowsGoOnBehindTheirPlace) {
  while (const auto lease = verifier.lease()) verifier.complete(*lease, 0.001);
  for (const char* list : {"/checkpoints", "/shadow"}) {
    const boost::json::value all = get(trainer.path(list));
    ASSERT_GE(all.as_array().size(), 5u) << list;
    pages(trainer.path(fmt::format("{}?limit=2", list)));
    EXPECT_EQ(rows, all.as_array()) << list;
  }
}

TEST_F(ApiPagesTest, RunsAreListedAHundredAtATimeAndByStateAndName) {
  HttpClient client = daemon.client();
  for (int job = 1; job <= 120; ++job) {
    client.checked("POST", "/v1/runs",
                   to_json(test_registration(job % 2 ? "odd" : "even", fmt::format("{}", job))));
  }
  client.checked("POST", "/v1/runs/5/finished", to_json(RunFinished{"failed", 1, 1, 1, 1}));
  EXPECT_THAT(pages("/v1/runs"), ElementsAre(100, 21));
  EXPECT_EQ(rows.front().at("run").as_string(), "run-1");
  EXPECT_EQ(rows.back().at("run").as_string(), "run-121");
  EXPECT_THAT(pages("/v1/runs?state=failed"), ElementsAre(1));
  EXPECT_EQ(rows[0].at("run").as_string(), "run-5");
  EXPECT_THAT(pages("/v1/runs?state=live&limit=70"), ElementsAre(70, 50));
  EXPECT_THAT(pages("/v1/runs?name=odd&limit=50"), ElementsAre(50, 10));
  EXPECT_THAT(pages("/v1/runs?name=even&state=failed"), ElementsAre(1));
  EXPECT_THAT(pages("/v1/runs?name=none"), ElementsAre(0));
  EXPECT_THAT(pages("/v1/runs?after=119&limit=1"), ElementsAre(1, 1));
}

TEST_F(ApiPagesTest, WhatALinkCarriesIsEscaped) {
  HttpClient client = daemon.client();
  const std::string name = "a&b=c d/ä>";
  for (const char* job : {"1", "2"}) {
    client.checked("POST", "/v1/runs", to_json(test_registration(name, job)));
  }
  EXPECT_THAT(pages("/v1/runs?name=a%26b%3Dc+d%2F%C3%A4%3E&limit=1"), ElementsAre(1, 1));
  EXPECT_EQ(rows[1].at("job_id").as_string(), "2");
}

// The cache of what only the decision core knows must not outlive a change.
TEST_F(ApiPagesTest, PhasesAndModesFollowStateAndPolicy) {
  EXPECT_EQ(get("/v1/runs").at(0).at("mode").as_string(), "enforce");
  HttpClient client = daemon.client();
  client.checked("PUT", trainer.path("/policy"), "mode = \"advise\"\n");
  EXPECT_EQ(get("/v1/runs").at(0).at("mode").as_string(), "advise");
  EXPECT_EQ(get("/v1/runs").at(0).at("phase").as_string(), "watching");
  client.checked("POST", trainer.path("/finished"), to_json(RunFinished{"completed", 20, 1, 1, 1}));
  EXPECT_EQ(get("/v1/runs").at(0).at("phase").as_string(), "ended");
}

TEST_F(ApiPagesTest, UnknownParametersAreRefusedWithTheirNameAndThoseThereAre) {
  Refused refusal = refused("GET", trainer.path("/windows?form=3"));
  EXPECT_EQ(refusal.status, 400);
  EXPECT_THAT(refusal.detail, HasSubstr("\"form\""));
  EXPECT_EQ(refusal.accepted, "from, limit");
  EXPECT_EQ(
      refused("POST", "/v1/leases?weit=3", to_json(LeaseRequest{"v", test_fingerprint()})).status,
      400);
  EXPECT_THAT(refused("GET", "/livez?x=1").accepted, HasSubstr("no parameters"));
  EXPECT_EQ(refused("GET", trainer.path("/steps?every=2&every=3")).status, 400);
}

// A verifier whose name no lease could carry is told so while there is no work, too.
TEST_F(ApiPagesTest, ValuesAreCheckedWhetherTheyAreNeededNowOrNot) {
  FakeTrainer idle(daemon.url());
  while (const auto lease = verifier.lease()) verifier.complete(*lease, 0.0);
  EXPECT_EQ(refused("POST", "/v1/leases",
                    to_json(LeaseRequest{std::string(201, 'x'), test_fingerprint()}))
                .status,
            400);
  EXPECT_EQ(refused("PUT", trainer.path("/policy")).status, 400) << "a body that was forgotten";
  EXPECT_EQ(refused("POST", "/v1/policy/check").status, 400);
  trainer.train(21, 25);
  const Lease lease = verifier.lease().value();
  ReplayResult result = verifier.result(lease, 0.0);
  verifier.complete(lease, 0.0);
  result.eval_seconds = -1;
  EXPECT_EQ(
      refused("POST", fmt::format("/v1/leases/{}/complete", lease.lease), to_json(result)).status,
      400)
      << "a repeat is no reason to take what is wrong";
}

}  // namespace
}  // namespace gnomon
