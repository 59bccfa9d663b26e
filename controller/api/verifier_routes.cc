#include <fmt/format.h>

#include <charconv>
#include <type_traits>

#include "controller/api/run_scope.h"
#include "controller/api/services.h"
#include "controller/api/trainer_calls.h"
#include "controller/supervisor/checks.h"
#include "protocol/json.h"
#include "protocol/text.h"

namespace gnomon {
namespace {

int64_t lease_id(const std::string& text) {
  int64_t id = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw HttpError(404, "Unknown lease", fmt::format("there is no lease \"{}\"", text),
                    "a lease from POST /v1/leases");
  }
  return id;
}

// One request for work. A request that was woken for a replay and ends without one wakes the next,
// whatever made it end.
class AskForWork {
 public:
  AskForWork(Services& services, const LeaseRequest& request, PrincipalPtr principal, double wait)
      : services_(services),
        wait_(wait),
        principal_(std::move(principal)),
        worker_(services.leases.register_request(request, wait)) {}
  AskForWork(const AskForWork&) = delete;
  AskForWork& operator=(const AskForWork&) = delete;
  ~AskForWork() { pass_on(); }

  // Up to the wait's end. Throws HttpError (503) when the daemon is draining or begins to.
  std::optional<Lease> answer(Exchange& exchange) {
    Awaited work = {[this](std::function<void()> wake) {
                      const uint64_t ticket = services_.queue.wait(worker_, std::move(wake));
                      // Whoever drains wakes those who wait; this one may have come after that.
                      if (ticket == 0 || !services_.draining) return ticket;
                      services_.queue.forget(ticket);
                      return uint64_t{0};
                    },
                    [this](uint64_t ticket) { woken_ = !services_.queue.forget(ticket); }};
    poll_until(
        exchange, [&] { return work; }, deadline_after(wait_), [&] { return look(exchange); });
    return std::move(lease_);
  }

 private:
  bool look(Exchange& exchange) {
    if (services_.stopping) return false;
    if (services_.draining) {
      throw HttpError(503, "The daemon is stopping", "it gives out no leases any more",
                      "the same request a little later, when it is back");
    }
    // A lease to a client that hung up while it waited would cost a lease time.
    if (!services_.leases.has_work_for(worker_) || (wait_ > 0 && exchange.over())) {
      pass_on();
      return false;
    }
    audited_write(exchange, services_, [&](LedgerTransaction& transaction) {
      lease_ = services_.leases.grant(transaction, worker_);
    });
    if (!lease_) pass_on();
    if (lease_) services_.leases.held().set_holder(lease_->lease, principal_);
    woken_ = false;
    return lease_.has_value();
  }

  void pass_on() {
    if (woken_) services_.queue.wake_matching();
    woken_ = false;
  }

  Services& services_;
  double wait_;
  const PrincipalPtr principal_;
  ReplayQueue::Worker worker_;
  bool woken_ = false;
  std::optional<Lease> lease_;
};

// A verifier is given the replays of any run, so a token for some runs asks as the trainer of one.
void check_asker_of(Exchange& exchange, const Request& request, const LeaseRequest& asked) {
  if (!request.principal->has_runs()) return;
  const std::optional<int64_t> run = run_number(asked.run);
  if (!asked.on_trainer || !run) {
    throw HttpError(403, "Run not accepted",
                    fmt::format("the token \"{}\" is for the runs {}, and verifiers replay any",
                                request.principal->name(), request.principal->runs_text()),
                    "on_trainer with one of these runs; a token of the role verifier");
  }
  check_run(exchange, request, *run);
}

Response ask_for_work(Services& services, Exchange& exchange, const Request& request) {
  const LeaseRequest asked = from_request<LeaseRequest>(request.body);
  check_asker_of(exchange, request, asked);
  if (const std::optional<int64_t> run = run_number(asked.run); asked.on_trainer && run) {
    const std::string incarnation = query_text(request, "incarnation");
    read_patiently(exchange,
                   [&](Connection& connection) { check_trainer(connection, *run, incarnation); });
  }
  AskForWork asker(services, asked, request.principal, query_seconds(request, "wait"));
  const std::optional<Lease> lease = asker.answer(exchange);
  return lease ? json_response(to_json(*lease)) : Response{204, "", "", {}, false};
}

template <typename Message>
Route lease_route(Services& services, const char* path, size_t body_max,
                  void (Leases::*take)(LedgerTransaction&, int64_t, const Message&)) {
  return {"POST", path, body_of<Message>(body_max),
          [&services, take](Exchange& exchange, const Request& request) {
            int64_t lease = lease_id(request.arguments[0]);
            Message message = from_request<Message>(request.body);
            const HeldLeases::Arrival arrival(services.leases.held(), lease, message.token,
                                              request.principal);
            check_lease(exchange, request, lease);
            // One that waits for the ledger already does as well as two.
            constexpr bool kBeats = std::is_same_v<Message, LeaseHeartbeat>;
            if (kBeats && arrival.another_waits()) return json_response("{}");
            audited_write(exchange, services, [&](LedgerTransaction& transaction) {
              services.leases.held().check_holder(lease, request.principal);
              (services.leases.*take)(transaction, lease, message);
            });
            return json_response("{}");
          }};
}

}  // namespace

std::vector<Route> verifier_routes(Services& s) {
  return {
      {"POST",
       "/v1/leases",
       body_of<LeaseRequest>(64 << 10),
       [&s](Exchange& e, const Request& request) { return ask_for_work(s, e, request); },
       false,
       {wait_parameter(), incarnation_parameter()}},
      lease_route(s, "/v1/leases/{lease}/heartbeat", 4 << 10, &Leases::heartbeat),
      lease_route(s, "/v1/leases/{lease}/complete", 32 << 20, &Leases::complete),
      lease_route(s, "/v1/leases/{lease}/fail", 64 << 10, &Leases::fail),
  };
}

}  // namespace gnomon
