// Tensor statistics: taken from trainers, shown to people.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "controller/api/listing.h"
#include "controller/api/services.h"
#include "controller/api/trainer_calls.h"
#include "controller/supervisor/statistics.h"
#include "protocol/json.h"
#include "protocol/site_glob.h"
#include "protocol/text.h"
#include "storage/json_rows.h"
#include "storage/ledger_runs.h"

namespace gnomon {
namespace {

constexpr size_t kReportMax = 8 << 20;
constexpr int64_t kStepsAtOnce = 1'000;
constexpr size_t kAnswerBytes = 8 << 20;  // about: a step is shown whole

Response post_statistics(Services& services, Exchange& exchange, const Request& request) {
  const int64_t run = parse_run_id(request.arguments[0]);
  const StatisticsReport report = from_request<StatisticsReport>(request.body);
  ReportAck ack;
  trainer_write(exchange, services, request, run, [&](LedgerTransaction& transaction) {
    ack = report_statistics({services.runs, transaction}, run, report);
  });
  return json_response(to_json(ack));
}

std::vector<std::string> site_globs(const Request& request) {
  const std::string glob = query_text(request, "site");
  if (glob.empty()) return {"*"};
  const std::string wrong = glob_error(glob);
  if (!wrong.empty()) {
    throw HttpError(400, "Bad query parameter", fmt::format("site = \"{}\": {}", glob, wrong),
                    "a glob over GEMM sites");
  }
  return expand_glob(glob, 0);
}

// Which rows of a step, and in which order. Statements are kept by their address: literals alone.
struct Choice {
  const char* worst;
  const char* sql;
  int64_t rows = INT64_MAX;
};

#define GNOMON_ROWS_OF_STEP                                                       \
  "SELECT site, body FROM statistics WHERE run = ? AND attempt = ? AND step = ? " \
  "AND (? = '' OR tensor = ?) "
constexpr Choice kAll = {"", GNOMON_ROWS_OF_STEP "ORDER BY site, tensor, gemm, recipe, in_use"};
constexpr std::array<Choice, 3> kWorst = {{
    {"underflow",
     GNOMON_ROWS_OF_STEP "AND in_use ORDER BY underflow DESC, sqnr_db, site, tensor, gemm"},
    {"saturation",
     GNOMON_ROWS_OF_STEP "AND in_use ORDER BY saturation DESC, sqnr_db, site, tensor, gemm"},
    {"sqnr_db",
     GNOMON_ROWS_OF_STEP "AND in_use ORDER BY sqnr_db IS NULL, sqnr_db, site, tensor, gemm"},
}};
#undef GNOMON_ROWS_OF_STEP

Choice chosen_rows(const Request& request) {
  const std::string worst = query_text(request, "worst");
  if (worst.empty()) return kAll;
  const auto* found =
      std::ranges::find_if(kWorst, [&](const Choice& choice) { return choice.worst == worst; });
  Choice choice = *found;
  choice.rows = query_integer(request, "rows");
  return choice;
}

// Reports as trainers send them, whole steps, the oldest first: the newest that fit. Without from
// and to the newest step alone. With worst: of each step only so many roundings in use, the worst
// first.
std::string show(Connection& connection, const Request& request) {
  const int64_t run = parse_run_id(request.arguments[0]);
  if (!ledger::load_run(connection, run)) throw unknown_run(request.arguments[0]);
  const std::vector<std::string> globs = site_globs(request);
  const std::string tensor = query_text(request, "tensor");
  const Choice choice = chosen_rows(request);
  const bool newest = !request.query.contains("from") && !request.query.contains("to");
  const int64_t from = query_integer(request, "from");
  const int64_t to = query_integer(request, "to");
  const int64_t limit = newest ? 1 : query_integer(request, "limit");
  Query steps = connection.query(
      "SELECT attempt, step, plan_version, measured_at FROM statistics_steps "
      "WHERE run = ? AND step >= ? AND step <= ? ORDER BY attempt DESC, step DESC LIMIT ?",
      run, from, to, limit);
  std::vector<std::string> reports;
  size_t bytes = 0;
  while (bytes < kAnswerBytes && steps.next()) {
    Query rows =
        connection.query(choice.sql, run, steps.integer(0), steps.integer(1), tensor, tensor);
    std::string list = "[";
    for (int64_t taken = 0; taken < choice.rows && rows.next();) {
      const std::string site = rows.text(0);
      const bool wanted = std::ranges::any_of(
          globs, [&](const std::string& glob) { return simple_glob_matches(glob, site); });
      if (!wanted) continue;
      append_element(list, rows.text(1));
      ++taken;
    }
    reports.push_back(fmt::format(R"({{"attempt":{},"step":{},"plan_version":{},"time":{},)"
                                  R"("rows":{}]}})",
                                  steps.integer(0), steps.integer(1), steps.integer(2),
                                  steps.real(3), list));
    bytes += reports.back().size();
  }
  std::ranges::reverse(reports);
  return fmt::format("[{}]", fmt::join(reports, ","));
}

}  // namespace

std::vector<Route> statistics_routes(Services& s) {
  return {
      {"POST",
       "/v1/runs/{run}/statistics",
       body_of<StatisticsReport>(kReportMax),
       [&s](Exchange& e, const Request& request) { return post_statistics(s, e, request); },
       true,
       {incarnation_parameter()}},
      {"GET",
       "/v1/runs/{run}/statistics",
       {},
       [](Exchange& exchange, const Request& request) {
         std::string json;
         exchange.read([&](Connection& connection) { json = show(connection, request); });
         return json_response(json);
       },
       true,
       {text_parameter("site", "Only sites that this glob matches, such as `model.layers.0.*`."),
        choice_parameter("tensor", "Only this tensor of each GEMM.",
                         {"input", "weight", "gradient", "output", "weight_gradient"}),
        from_step_parameter(), to_step_parameter(),
        integer_parameter("limit", "At most so many steps, the newest of about 8 MiB.", 1,
                          kStepsAtOnce, 100),
        choice_parameter("worst",
                         "Only the worst roundings in use of each step by this number, the worst "
                         "first.",
                         {"underflow", "saturation", "sqnr_db"}),
        integer_parameter("rows", "With `worst`, so many rows of each step.", 1, 1'000, 16)}},
  };
}

}  // namespace gnomon
