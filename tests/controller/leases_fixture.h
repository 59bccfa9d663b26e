// Leases on a real ledger, against a clock that the test moves.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <functional>
#include <memory>

#include "controller/auth/http_error.h"
#include "controller/leases/leases.h"
#include "controller/supervisor/effects.h"
#include "controller/supervisor/registration.h"
#include "storage/ledger_runs.h"
#include "tests/controller/registration.h"
#include "tests/storage/ledger_fixture.h"

namespace gnomon {

class LeasesTest : public LedgerTest {
 protected:
  LeasesTest() : ledger_(options()) {
    make_controller();
    write([&](LedgerTransaction& transaction) {
      run_ = parse_run_id(register_run({*runs_, transaction}, small_registration()).run);
      ledger::insert(transaction.connection(),
                     WindowRow{{1, "shadow", 1, 10, 5, "start", "end", 1}, {}, run_});
    });
  }

  // As after a restart: nothing but the ledger is left.
  void make_controller() {
    metrics_ = std::make_unique<Metrics>();
    queue_ = std::make_unique<ReplayQueue>();
    notifiers_ = std::make_unique<ChangeNotifiers>();
    runs_ = std::make_unique<RunCache>(
        *metrics_, *queue_, *notifiers_,
        RunCacheOptions{"[verifier]\nlease_ttl_seconds = 10.0\nattempts_max = 2\n", 3600},
        [this] { return 1e9 + clock_; }, [this] { return clock_; });
    leases_ = std::make_unique<Leases>(*runs_, *metrics_, *queue_);
    write([&](LedgerTransaction& transaction) { leases_->restore(transaction); });
  }
  void write(const Ledger::Write& action) { ledger_.write(action); }

  // As the core does.
  void order(LedgerTransaction& transaction, int64_t run, int64_t replay, int64_t priority = 0,
             double time = 0, bool on_trainer = false) {
    decide::OrderReplay effect{{replay, 1, "bf16", "", "shadow", true}};
    effect.priority = priority;
    effect.on_trainer = on_trainer;
    apply_effect({transaction, *metrics_, *queue_, *notifiers_, run, 1, time}, effect);
  }
  void order(int64_t replay, int64_t priority = 0) {
    write([&](LedgerTransaction& transaction) { order(transaction, run_, replay, priority); });
  }
  // The run's trainer verifies inline.
  void verify_inline() {
    write([&](LedgerTransaction& transaction) {
      RunRegistration registration = small_registration();
      registration.trainer_replays = true;
      register_run({*runs_, transaction}, registration);
    });
  }
  // Another run with an open window.
  int64_t add_run(const std::string& job, const std::string& start_uri = "other",
                  const std::string& backend = "") {
    int64_t run = 0;
    write([&](LedgerTransaction& transaction) {
      RunRegistration other = small_registration();
      other.job_id = job;
      other.fingerprint.backend = backend;
      run = parse_run_id(register_run({*runs_, transaction}, other).run);
      ledger::insert(transaction.connection(),
                     WindowRow{{1, "shadow", 1, 10, 5, start_uri, "end", 1}, {}, run});
    });
    return run;
  }
  std::optional<Lease> grant(const LeaseRequest& request) {
    ReplayQueue::Worker worker = leases_->register_request(request, 0);
    std::optional<Lease> lease;
    write([&](LedgerTransaction& transaction) { lease = leases_->grant(transaction, worker); });
    return lease;
  }
  std::optional<Lease> grant(const std::string& verifier = "v:1") {
    return grant(LeaseRequest{verifier, {}});
  }
  Lease grant_of_another_run(const std::string& verifier) {
    const int64_t run = add_run("another");
    write([&](LedgerTransaction& transaction) { order(transaction, run, 1); });
    return grant(verifier).value();
  }
  std::optional<Lease> grant_trainer(const std::string& run) {
    return grant(LeaseRequest{std::string(kTrainerPrefix) + "host:7", {}, run, true});
  }
  void heartbeat(const Lease& lease) {
    write([&](LedgerTransaction& transaction) {
      leases_->heartbeat(transaction, lease.lease, {lease.token, 1});
    });
  }
  void complete(int64_t lease, int64_t token) {
    ReplayResult result;
    result.token = token;
    write([&](LedgerTransaction& transaction) { leases_->complete(transaction, lease, result); });
  }
  void fail(const Lease& lease, bool retryable) {
    write([&](LedgerTransaction& transaction) {
      leases_->fail(transaction, lease.lease, {lease.token, "no device", retryable});
    });
  }
  void expire() {
    for (int64_t lease : leases_->held().overdue()) {
      write([&](LedgerTransaction& transaction) { leases_->expire(transaction, lease); });
    }
  }
  void quarantine(const std::string& verifier) {
    write([&](LedgerTransaction& transaction) {
      apply_effect({transaction, *metrics_, *queue_, *notifiers_, run_, 1, 0},
                   decide::QuarantineVerifier{verifier, "computes wrongly"});
    });
  }
  std::string replay_state(int64_t replay) {
    std::string state;
    ledger_.read([&](Connection& connection) {
      state = ledger::find_replay(connection, run_, replay).value().state;
    });
    return state;
  }
  int status_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const HttpError& error) {
      return error.problem().status;
    }
    return 200;
  }

  double clock_ = 1000;
  Ledger ledger_;
  std::unique_ptr<ReplayQueue> queue_;
  std::unique_ptr<ChangeNotifiers> notifiers_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<RunCache> runs_;
  std::unique_ptr<Leases> leases_;
  int64_t run_ = 0;
};

}  // namespace gnomon
