#include <fmt/format.h>

#include <charconv>

#include "controller/api/listing.h"
#include "controller/api/run_scope.h"
#include "controller/api/services.h"
#include "controller/api/trainer_calls.h"
#include "controller/supervisor/attempts.h"
#include "controller/supervisor/checks.h"
#include "controller/supervisor/directives.h"
#include "controller/supervisor/ending.h"
#include "controller/supervisor/notices.h"
#include "controller/supervisor/registration.h"
#include "controller/supervisor/reports.h"
#include "protocol/json.h"
#include "protocol/text.h"
#include "storage/ledger_decisions.h"
#include "storage/ledger_runs.h"
#include "storage/view_queries.h"

namespace gnomon {
namespace {

constexpr int64_t kRunningMaxSeconds = 1'000'000'000;

// A report of one kind: parsed, taken in one write, answered with its ReportAck.
template <typename Message>
Route report_route(Services& services, const char* path, size_t body_max,
                   ReportAck (*report)(WriteContext, int64_t, const Message&)) {
  return {"POST",
          path,
          body_of<Message>(body_max),
          [&services, report](Exchange& exchange, const Request& request) {
            int64_t run = parse_run_id(request.arguments[0]);
            Message message = from_request<Message>(request.body);
            ReportAck ack;
            trainer_write(exchange, services, request, run, [&](LedgerTransaction& transaction) {
              ack = report({services.runs, transaction}, run, message);
            });
            return json_response(to_json(ack));
          },
          true,
          {incarnation_parameter()}};
}

Response post_run(Services& services, Exchange& exchange, const Request& request) {
  // Its texts are checked where it is known whether the run is on record with them.
  const auto registration = from_request_with_any_text<RunRegistration>(request.body);
  Authenticator::authorise_run(*request.principal, registration.name);
  const TrainerProcess process = {query_text(request, "incarnation"),
                                  query_seconds(request, "running")};
  if (!is_one_line(process.incarnation)) {
    throw HttpError(400, "Bad query parameter", "incarnation has control characters", "one line");
  }
  RunRegistered registered;
  audited_write(exchange, services, [&](LedgerTransaction& transaction) {
    registered = register_run({services.runs, transaction}, registration, process);
  });
  services.runs.record_contact(parse_run_id(registered.run));
  return json_response(to_json(registered));
}

int64_t directive_number(const std::string& text) {
  int64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw HttpError(404, "Unknown directive", fmt::format("\"{}\" is no directive's number", text),
                    "1, 2, ...");
  }
  return number;
}

Response acknowledge(Services& services, Exchange& exchange, const Request& request) {
  int64_t run = parse_run_id(request.arguments[0]);
  int64_t number = directive_number(request.arguments[1]);
  DirectiveAck ack = from_request<DirectiveAck>(request.body);
  Directive directive;
  trainer_write(exchange, services, request, run, [&](LedgerTransaction& transaction) {
    directive = acknowledge_directive({services.runs, transaction}, run, number, ack);
  });
  return json_response(to_json(directive));
}

// The trainer's long poll: open directives above `after`, waiting for one up to `wait`. To HEAD
// nothing is delivered.
Response poll_directives(Services& services, Exchange& exchange, const Request& request,
                         int64_t run) {
  const int64_t after = query_integer(request, "after");
  const double wait = query_seconds(request, "wait");
  const std::string incarnation = query_text(request, "incarnation");
  const int64_t attempt = query_integer(request, "attempt");
  const auto check_sender = [&](Connection& connection) {
    check_trainer(connection, run, incarnation);
    check_newest_attempt(connection, run, attempt);
  };
  read_patiently(exchange, [&](Connection& connection) {
    if (!ledger::load_run(connection, run)) throw unknown_run(request.arguments[0]);
    check_sender(connection);
  });
  if (request.method == "HEAD") {
    Response response = json_response("");
    response.open_ended = true;
    return response;
  }
  services.runs.record_contact(run);
  DirectiveList list;
  ChangeNotifier& notifier = services.notifiers.directives.of(run);
  const auto next = [&notifier] { return notifier.after(notifier.count()); };
  poll_until(exchange, next, deadline_after(wait), [&] {
    bool any = false;
    exchange.read([&](Connection& connection) {
      check_sender(connection);
      any = !ledger::open_directives(connection, run, after).empty();
    });
    // Only a client that is still there gets directives: what was delivered counts as delivered.
    if (!any || (wait > 0 && exchange.over())) return false;
    audited_write(exchange, services, [&](LedgerTransaction& transaction) {
      check_sender(transaction.connection());
      list = deliver_directives({services.runs, transaction}, run, after);
    });
    return true;
  });
  if (!exchange.over()) services.runs.record_contact(run);
  return json_response(to_json(list));
}

Response directives(Services& services, Exchange& exchange, const Request& request) {
  if (query_given(request, "after")) {  // what is delivered counts as delivered
    Authenticator::refuse_foreign_page(request.foreign_page);
    Authenticator::authorise(request.principal, Access::kTrain);
    const int64_t run = parse_run_id(request.arguments[0]);
    check_run(exchange, request, run);
    return poll_directives(services, exchange, request, run);
  }
  return numbered_page(exchange, request, views::kDirectives, "number");
}

Response post_steps(Services& services, Exchange& exchange, const Request& request) {
  int64_t run = parse_run_id(request.arguments[0]);
  StepBatch batch = from_request<StepBatch>(request.body);
  ReportAck ack;
  trainer_write(exchange, services, request, run, [&](LedgerTransaction& transaction) {
    ack = report_steps({services.runs, transaction}, run, batch);
  });
  return json_response(to_json(ack));
}

}  // namespace

QueryParameter incarnation_parameter() {
  return text_parameter("incarnation",
                        "Which process of a trainer asks, a text that is new with each start. When "
                        "another one that started later has registered, requests of this one are "
                        "409 (`Another trainer has taken over`), and it has to end. A request "
                        "without it is not told apart.",
                        64);
}

QueryParameter wait_parameter() {
  return seconds_parameter("wait",
                           "Seconds to wait for something new; with or without an `s` behind them.",
                           kWaitMaxSeconds);
}

void trainer_write(Exchange& exchange, Services& services, const Request& request, int64_t run,
                   const Ledger::Write& write) {
  const std::string incarnation = query_text(request, "incarnation");
  audited_write(exchange, services, [&](LedgerTransaction& transaction) {
    check_trainer(transaction.connection(), run, incarnation);
    write(transaction);
  });
  services.runs.record_contact(run);
}

// `after`, `wait`, `attempt` and `incarnation` are the trainer's, the others those of a list.
static std::vector<QueryParameter> directives_parameters() {
  std::vector<QueryParameter> parameters = numbered_parameters();
  parameters.push_back(integer_parameter(
      "after", "The number of the last directive that the trainer knows.", 0, INT64_MAX, 0));
  parameters.push_back(wait_parameter());
  parameters.push_back(integer_parameter(
      "attempt", "The trainer's attempt; 409 when a newer one has begun. 0 is not said.", 0,
      INT64_MAX, 0));
  parameters.push_back(incarnation_parameter());
  return parameters;
}

std::vector<Route> trainer_routes(Services& s) {
  using E = Exchange;
  return {
      {"POST",
       "/v1/runs",
       body_of<RunRegistration>(4 << 20),
       [&s](E& e, const Request& request) { return post_run(s, e, request); },
       true,
       {incarnation_parameter(),
        seconds_parameter("running",
                          "How long the process has run, in seconds; of two processes the one that "
                          "started later has the run.",
                          kRunningMaxSeconds)}},
      report_route(s, "/v1/runs/{run}/attempts", 16 << 10, &start_attempt),
      {"POST",
       "/v1/runs/{run}/steps",
       body_of<StepBatch>(8 << 20),
       [&s](E& e, const Request& request) { return post_steps(s, e, request); },
       true,
       {incarnation_parameter()}},
      report_route(s, "/v1/runs/{run}/checkpoints", 64 << 10, &report_checkpoint),
      report_route(s, "/v1/runs/{run}/notices", 512 << 10, &report_notice),
      report_route(s, "/v1/runs/{run}/finished", 16 << 10, &finish_run),
      {"GET",
       "/v1/runs/{run}/directives",
       {},
       [&s](E& e, const Request& request) { return directives(s, e, request); },
       false,
       directives_parameters()},
      {"POST",
       "/v1/runs/{run}/directives/{number}/ack",
       body_of<DirectiveAck>(64 << 10),
       [&s](E& e, const Request& request) { return acknowledge(s, e, request); },
       true,
       {incarnation_parameter()}},
  };
}

}  // namespace gnomon
