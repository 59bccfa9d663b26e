#include "controller/api/listing.h"

#include <fmt/format.h>

#include "controller/api/services.h"
#include "storage/json_rows.h"

namespace gnomon {

Route view(const char* path, std::function<std::string(Connection&, const Request&)> show,
           std::vector<QueryParameter> parameters) {
  return {"GET",
          path,
          {},
          [show = std::move(show)](Exchange& exchange, const Request& request) {
            std::string json;
            exchange.read([&](Connection& connection) { json = show(connection, request); });
            return json_response(std::move(json));
          },
          true,
          std::move(parameters)};
}

RunRow require_run(Connection& connection, const Request& request) {
  std::optional<RunRow> run = ledger::load_run(connection, parse_run_id(request.arguments[0]));
  if (!run) {
    throw unknown_run(request.arguments[0]);
  }
  return *std::move(run);
}

QueryParameter limit_parameter(int64_t most, int64_t absent) {
  return integer_parameter("limit", "At most so many rows; the header Link leads to the others.", 1,
                           most, absent);
}

QueryParameter from_step_parameter() {
  return integer_parameter("from", "The first training step.", 0, INT64_MAX, 0);
}

QueryParameter to_step_parameter() {
  return integer_parameter("to", "The last training step.", 0, INT64_MAX, INT64_MAX);
}

QueryParameter after_place_parameter() {
  return place_parameter("after",
                         "Where to go on, behind the row of these two numbers. Take it from the "
                         "header Link of the page before.");
}

std::vector<QueryParameter> numbered_parameters() {
  return {integer_parameter("from", "The number of the first row.", 0, INT64_MAX, 0),
          limit_parameter()};
}

Response numbered_page(Exchange& exchange, const Request& request, const char* sql,
                       const char* key) {
  Page page(query_integer(request, "limit"));
  exchange.read([&](Connection& connection) {
    const int64_t run = require_run(connection, request).id;
    Query rows = connection.query(sql, run, query_integer(request, "from"), page.rows_wanted());
    page.add(rows, key);
  });
  const std::string next = fmt::format("{}", page.key() + 1);
  return std::move(page).response(request, "from", next);
}

Route numbered_rows(const char* path, const char* sql, const char* key, const char* row) {
  return {"GET",
          path,
          {},
          [sql, key](Exchange& exchange, const Request& request) {
            return numbered_page(exchange, request, sql, key);
          },
          true,
          numbered_parameters(),
          row};
}

Route placed_rows(const char* path, const char* sql, const char* key, const char* step,
                  const char* row) {
  return {"GET",
          path,
          {},
          [sql, key, step](Exchange& exchange, const Request& request) {
            Page page(query_integer(request, "limit"));
            exchange.read([&](Connection& connection) {
              const int64_t run = require_run(connection, request).id;
              const auto [first, second] = query_place(request, "after");
              // Steps begin at 0: without a place, nothing is left out.
              Query rows = connection.query(sql, run, query_integer(request, "from"), first,
                                            query_given(request, "after") ? second : int64_t{-1},
                                            page.rows_wanted());
              page.add(rows, key, step);
            });
            const std::string next = fmt::format("{}.{}", page.key(), page.second_key());
            return std::move(page).response(request, "after", next);
          },
          true,
          {from_step_parameter(), after_place_parameter(), limit_parameter()},
          row};
}

void Page::add(const std::string& element, int64_t key) {
  if (rows_ == limit_) {
    more_ = true;
    return;
  }
  append_element(json_, element);
  ++rows_;
  key_ = key;
}

void Page::add(Query& query, const char* key, const char* second_key) {
  int key_column = -1;
  int second_column = -1;
  while (!more_ && query.next()) {
    if (key_column < 0) {
      key_column = query.statement().getColumnIndex(key);
      second_column = second_key ? query.statement().getColumnIndex(second_key) : -1;
    }
    if (rows_ == limit_) {
      more_ = true;
      break;
    }
    add(row_as_json(query), query.integer(key_column));
    if (second_column >= 0) second_key_ = query.integer(second_column);
  }
}

Response Page::response(const Request& request, const std::string& parameter,
                        const std::string& value) && {
  json_ += ']';
  Response response = json_response(std::move(json_));
  if (more_) {
    std::string query = fmt::format("{}={}", parameter, percent_encode(value));
    for (const auto& [name, given] : request.query) {
      if (name != parameter) {
        query += fmt::format("&{}={}", percent_encode(name), percent_encode(given));
      }
    }
    response.headers.emplace_back(
        "Link", fmt::format("<{}?{}>; rel=\"next\"",
                            request.target.substr(0, request.target.find('?')), query));
  }
  return response;
}

}  // namespace gnomon
