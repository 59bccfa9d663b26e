// Whatever comes after a run's end: the state on record is what its events lead to, every GET is
// answered, and a daemon that was killed begins again with the same.
#include <fmt/format.h>

#include "controller/leases/leases.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/decision_state.h"
#include "controller/supervisor/directives.h"
#include "controller/supervisor/ending.h"
#include "controller/supervisor/notices.h"
#include "controller/supervisor/overrides.h"
#include "controller/supervisor/registration.h"
#include "controller/supervisor/reports.h"
#include "controller/supervisor/statistics.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "tests/controller/api_fixture.h"
#include "tests/controller/registration.h"
#include "tests/support/words.h"

namespace gnomon {
namespace {

const char* const kOutcomes[] = {"completed", "stopped", "failed"};
const char* const kCalls[] = {
    "nothing",  "step",  "steps",      "checkpoint",    "attempt",     "register",
    "settings", "lease", "lease_lost", "directive_ack", "notice",      "statistics",
    "override", "pause", "policy",     "step_twice",    "finish_again"};

// Empty: the state that is read is the one that the events lead to, from the first.
std::string misfit(Connection& connection, int64_t run) {
  const decide::Policy policy =
      decide::Policy::parse(ledger::load_run(connection, run).value().policy, "policy");
  try {
    const StateOnRecord known = state_on_record(connection, run, policy).value();
    if (!known.rebuilt_because.empty()) return known.rebuilt_because;
    const StateOnRecord rebuilt = rebuilt_state(connection, run, policy);
    if (known.seq != rebuilt.seq) return fmt::format("{} and {}", known.seq, rebuilt.seq);
    return decide::state_to_json(known.state) == decide::state_to_json(rebuilt.state) ? ""
                                                                                      : "differs";
  } catch (const Error& error) {
    return error.what();
  }
}

std::string misfit(const std::filesystem::path& ledger, int64_t run) {
  Connection connection(open_for_looking(ledger));
  return misfit(connection, run);
}

constexpr const char* kViews[] = {
    "",         "/economics", "/steps",      "/layers",       "/checkpoints", "/shadow",
    "/windows", "/plans",     "/decisions",  "/replays",      "/notices",     "/overrides",
    "/audit",   "/policy",    "/statistics", "/device_health"};

class AfterTheEndTest : public ApiTest {
 protected:
  struct Case {
    FakeTrainer trainer;
    Lease lease;
    int64_t directive = 0;
  };

  // Ten steps, a leased replay, a directive that is not answered; then the end.
  Case ended(const std::string& name, const std::string& outcome) {
    Case it{FakeTrainer(daemon.url()), {}, 0};
    it.trainer.begin(test_registration(name));
    it.trainer.train(1, 10);
    for (std::optional<Lease> lease; (lease = verifier.lease());) {
      if (lease->task.run != it.trainer.run) continue;
      it.lease = *lease;
      break;
    }
    EXPECT_GT(it.lease.lease, 0) << name;
    post(it, "/overrides", R"({"kind":"pause","owner":"mira","reason":"test"})");
    it.directive = it.trainer.poll(0).directives.at(0).number;
    EXPECT_EQ(post(it, "/finished", to_json(RunFinished{test::any_word(outcome), 10, 3, 1, 1})),
              200);
    return it;
  }
  int post(Case& it, const std::string& path, const std::string& body) {
    return it.trainer.client().request("POST", it.trainer.path(path), body).status;
  }
  int steps(Case& it, std::vector<StepReport> reports) {
    return post(it, "/steps", to_json(StepBatch{std::move(reports)}));
  }
  int call(Case& it, const std::string& name, const std::string& what, const std::string& outcome) {
    HttpClient& client = it.trainer.client();
    if (what == "step") return steps(it, {test_step(11)});
    if (what == "step_twice") {
      steps(it, {test_step(11)});
      return steps(it, {test_step(12)});
    }
    if (what == "steps") return steps(it, {test_step(11), test_step(12), test_step(13)});
    if (what == "checkpoint") return post(it, "/checkpoints", to_json(test_checkpoint(15)));
    if (what == "attempt") {
      return post(it, "/attempts", to_json(AttemptStart{2, 5, "restart", 1, 1.0}));
    }
    if (what == "register" || what == "settings") {
      RunRegistration registration = test_registration(name);
      if (what == "settings") registration.total_steps = 77;
      return client.request("POST", "/v1/runs", to_json(registration)).status;
    }
    if (what == "lease") {
      return client
          .request("POST", fmt::format("/v1/leases/{}/complete", it.lease.lease),
                   to_json(verifier.result(it.lease, 0.2)))
          .status;
    }
    if (what == "lease_lost") {
      return client
          .request("POST", fmt::format("/v1/leases/{}/fail", it.lease.lease),
                   to_json(LeaseFailure{it.lease.token, "no memory", false}))
          .status;
    }
    if (what == "directive_ack") {
      return post(it, fmt::format("/directives/{}/ack", it.directive),
                  to_json(DirectiveAck{"applied", 1, 10, "", 1}));
    }
    if (what == "notice") {
      return post(it, "/notices",
                  to_json(TrainerNotice{1, 10, "checkpoint_failed", "full", "", 0, 1}));
    }
    if (what == "statistics")
      return post(it, "/statistics", to_json(StatisticsReport{1, 10, 1, {}, 1}));
    if (what == "override") {
      return post(it, "/overrides",
                  R"({"kind":"silence","owner":"mira","reason":"test","expires_seconds":60})");
    }
    if (what == "pause") {
      return post(it, "/overrides", R"({"kind":"resume","owner":"mira","reason":"test"})");
    }
    if (what == "policy") {
      return client.request("PUT", it.trainer.path("/policy"), test_policy() + "# another\n")
          .status;
    }
    if (what == "finish_again") {
      return post(it, "/finished",
                  to_json(RunFinished{outcome == "failed" ? RunOutcome("stopped") : "failed", 10, 3,
                                      1, 1}));
    }
    return 200;
  }
  void expect_well(const std::string& run, const std::string& what) {
    HttpClient client = daemon.client();
    EXPECT_EQ(client.request("GET", "/v1/runs?limit=1000").status, 200) << what;
    for (const char* view : kViews) {
      const HttpResponse response = client.request("GET", "/v1/runs/" + run + view);
      EXPECT_EQ(response.status, 200) << what << " " << view << ": " << response.body;
    }
    EXPECT_EQ(misfit(daemon.ledger(), parse_run_id(run)), "") << what;
  }

  FakeVerifier verifier{daemon.url()};
};

TEST_F(AfterTheEndTest, EveryCallLeavesALedgerThatCanBeReadAndBegunWithAgain) {
  std::map<std::string, std::string> runs;  // what was done, by run
  for (const char* outcome : kOutcomes) {
    for (const char* what : kCalls) {
      const std::string name = fmt::format("{}-{}", outcome, what);
      Case it = ended(name, outcome);
      const int status = call(it, name, what, outcome);
      EXPECT_LT(status, 500) << name;
      expect_well(it.trainer.run, name);
      runs[it.trainer.run] = name;
    }
  }
  std::map<std::string, boost::json::value> before;
  for (const auto& [run, name] : runs) {
    before[run] = get("/v1/runs/" + run).at("decision_state");
  }
  daemon.kill();
  daemon.start();
  for (const auto& [run, name] : runs) {
    EXPECT_EQ(get("/v1/runs/" + run).at("decision_state"), before[run]) << name;
    expect_well(run, name + " and a kill");
  }
  EXPECT_EQ(metric("gnomon_runs_set_aside"), 0);
  EXPECT_EQ(daemon.stop(), 0);
  for (const auto& [run, name] : runs) {
    EXPECT_EQ(misfit(daemon.ledger(), parse_run_id(run)), "") << name << " and a stop";
  }
}

// An operator's end needs two minutes of silence: here on a clock of the test.
class AfterAnOperatorsEndTest : public ::testing::Test {
 protected:
  using Call = std::function<void(LedgerTransaction&, int64_t run)>;

  AfterAnOperatorsEndTest() {
    LedgerOptions options;
    options.file = daemon.ledger();
    ledger.emplace(options);
  }
  void write(const std::function<void(LedgerTransaction&)>& what) {
    try {
      ledger->write(what);
    } catch (const HttpError& refusal) {
      EXPECT_LT(refusal.problem().status, 500) << refusal.what();
    }
    steady += 0.01;
  }
  static StepReport step(int64_t number) {
    StepReport report = test_step(number);
    report.weights_hash.clear();
    return report;
  }
  static std::pair<int64_t, int64_t> held(LedgerTransaction& transaction, int64_t run) {
    Query lease = transaction.connection().query("SELECT id, token FROM leases WHERE run = ?", run);
    EXPECT_TRUE(lease.next());
    return {lease.integer(0), lease.integer(1)};
  }
  int64_t begin(const std::string& name) {
    int64_t run = 0;
    write([&](LedgerTransaction& transaction) {
      RunRegistration registration = small_registration();
      registration.name = name;
      run = parse_run_id(register_run({cache, transaction}, registration).run);
      start_attempt({cache, transaction}, run, {1, 0, "start", 1, 0, {}});
      report_checkpoint({cache, transaction}, run, test_checkpoint(0));
    });
    for (int64_t i = 1; i <= 10; ++i) {
      write([&](LedgerTransaction& transaction) {
        report_steps({cache, transaction}, run, {{step(i)}});
        if (i % 5 == 0) report_checkpoint({cache, transaction}, run, test_checkpoint(i));
      });
    }
    return run;
  }

  test::DaemonProcess daemon;
  double steady = 1000;
  std::optional<Ledger> ledger;
  Metrics metrics;
  ReplayQueue queue;
  ChangeNotifiers notifiers;
  RunCache cache{metrics,
                 queue,
                 notifiers,
                 RunCacheOptions{test_policy(), 3600},
                 [this] { return 1e9 + steady; },
                 [this] { return steady; }};
  Leases leases{cache, metrics, queue};
};

TEST_F(AfterAnOperatorsEndTest, EveryCallLeavesALedgerThatCanBeReadAndBegunWithAgain) {
  std::map<std::string, Call> calls = {
      {"nothing", [](LedgerTransaction&, int64_t) {}},
      {"step",
       [&](LedgerTransaction& transaction, int64_t run) {
         report_steps({cache, transaction}, run, {{step(11)}});
       }},
      {"checkpoint",
       [&](LedgerTransaction& transaction, int64_t run) {
         report_checkpoint({cache, transaction}, run, test_checkpoint(15));
       }},
      {"attempt",
       [&](LedgerTransaction& transaction, int64_t run) {
         start_attempt({cache, transaction}, run, {2, 5, "restart", 1, 0, {}});
       }},
      {"finished",
       [&](LedgerTransaction& transaction, int64_t run) {
         finish_run({cache, transaction}, run, {"completed", 10, 3, 1, 1});
       }},
      {"override",
       [&](LedgerTransaction& transaction, int64_t run) {
         override_run({cache, transaction}, run, {"pause", "", "", "mira", "test", 0});
       }},
      {"policy",
       [&](LedgerTransaction& transaction, int64_t run) {
         set_policy({cache, transaction}, run, "mode = \"enforce\"\n");
       }},
      {"lease",
       [&](LedgerTransaction& transaction, int64_t run) {
         const auto [lease, token] = held(transaction, run);
         ReplayResult result;
         result.token = token;
         leases.complete(transaction, lease, result);
       }},
      {"lease_lost",
       [&](LedgerTransaction& transaction, int64_t run) {
         const auto [lease, token] = held(transaction, run);
         leases.fail(transaction, lease, {token, "no memory", false});
       }},
      {"directive_ack",
       [&](LedgerTransaction& transaction, int64_t run) {
         acknowledge_directive({cache, transaction}, run, 1, {"applied", 1, 10, "", 1});
       }},
      {"notice",
       [&](LedgerTransaction& transaction, int64_t run) {
         report_notice({cache, transaction}, run, {1, 10, "checkpoint_failed", "full", "", 0, 1});
       }},
      {"statistics",
       [&](LedgerTransaction& transaction, int64_t run) {
         report_statistics({cache, transaction}, run, {1, 10, 1, {}, 1});
       }},
      {"register",
       [&](LedgerTransaction& transaction, int64_t) {
         RunRegistration registration = small_registration();
         registration.name = "register";
         registration.total_steps = 77;
         register_run({cache, transaction}, registration);
       }},
  };
  std::map<int64_t, std::string> runs;
  for (const auto& [name, call] : calls) {
    const int64_t run = begin(name);
    runs[run] = name;
    ReplayQueue::Worker worker = leases.register_request({"verifier:1", test_fingerprint()}, 0);
    write([&](LedgerTransaction& transaction) {
      leases.grant(transaction, worker);
      override_run({cache, transaction}, run, {"pause", "", "", "mira", "test", 0});
    });
    steady += 121;
    write([&](LedgerTransaction& transaction) {
      end_run({cache, transaction}, run, {"mira", "the node burned down"});
    });
    write([&](LedgerTransaction& transaction) { call(transaction, run); });
    ledger->read([&](Connection& connection) { EXPECT_EQ(misfit(connection, run), "") << name; });
  }
  ledger.reset();  // as after a kill: what is in memory is not written down
  daemon.start();
  HttpClient client = daemon.client();
  EXPECT_EQ(client.request("GET", "/v1/runs").status, 200);
  for (const auto& [run, name] : runs) {
    for (const char* view : kViews) {
      EXPECT_EQ(client.request("GET", fmt::format("/v1/runs/run-{}{}", run, view)).status, 200)
          << name << view;
    }
    EXPECT_EQ(misfit(daemon.ledger(), run), "") << name;
  }
}

}  // namespace
}  // namespace gnomon
