// Lists of rows, a page at a time: at most so many rows, and a Link header (RFC 8288) to the next
// ones when there are any.
#pragma once

#include <functional>
#include <string>

#include "controller/api/router.h"
#include "storage/ledger_connection.h"
#include "storage/ledger_runs.h"

namespace gnomon {

inline constexpr int64_t kRowsDefault = 10'000;
inline constexpr int64_t kRowsMax = 100'000;

// Answers with JSON that a reader of the ledger gives.
Route view(const char* path, std::function<std::string(Connection&, const Request&)> show,
           std::vector<QueryParameter> parameters = {});

// The run that the path names. Throws HttpError (404).
RunRow require_run(Connection& connection, const Request& request);

// Parameters that several lists have.
QueryParameter limit_parameter(int64_t most = kRowsMax, int64_t absent = kRowsDefault);
QueryParameter from_step_parameter();
QueryParameter to_step_parameter();
QueryParameter after_place_parameter();

// Rows of a run by their number: `sql` takes the run, the number from which on and how many, and
// gives the number in the column `key`. The rows are an array; `row` is their schema.
Route numbered_rows(const char* path, const char* sql, const char* key, const char* row);
Response numbered_page(Exchange& exchange, const Request& request, const char* sql,
                       const char* key);
std::vector<QueryParameter> numbered_parameters();

// Rows of a run ordered by two numbers, of which the second is a step: `sql` takes the run, the
// step from which on, the place behind which the page begins and how many.
Route placed_rows(const char* path, const char* sql, const char* key, const char* step,
                  const char* row);

// A JSON array that takes rows until it is full.
class Page {
 public:
  explicit Page(int64_t limit) : limit_(limit) {}
  // The rows of a query that was asked for rows_wanted(); remembers the keys of the last one taken.
  void add(Query& query, const char* key, const char* second_key = nullptr);
  void add(const std::string& element, int64_t key);
  // One more than there is room for: whether it comes says whether there is a next page.
  int64_t rows_wanted() const { return limit_ - rows_ + 1; }
  bool more() const { return more_; }
  int64_t key() const { return key_; }
  int64_t second_key() const { return second_key_; }
  // The answer; when there is more, with a Link to the same request with `parameter` = `value`.
  Response response(const Request& request, const std::string& parameter,
                    const std::string& value) &&;

 private:
  int64_t limit_;
  int64_t rows_ = 0;
  bool more_ = false;
  int64_t key_ = 0;
  int64_t second_key_ = 0;
  std::string json_ = "[";
};

}  // namespace gnomon
