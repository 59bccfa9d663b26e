// The sentences that validators write; each of them looks at one side of the ledger.
#pragma once

#include <SQLiteCpp/Database.h>
#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/robustness/hook.h"
#include "tests/robustness/record.h"

namespace gnomon::robustness {

class Findings {
 public:
  template <typename... Values>
  void add(fmt::format_string<Values...> text, Values&&... values) {
    all_.push_back(fmt::format(text, std::forward<Values>(values)...));
  }
  std::vector<std::string> all() && { return std::move(all_); }

 private:
  std::vector<std::string> all_;
};

// What was reported, and that nothing else is there.
void check_reports(SQLite::Database& ledger, const RunRecord& run, Findings& findings);
// Leases, results, directives, overrides.
void check_orders(SQLite::Database& ledger, const RunRecord& run, Findings& findings);
// The stream has all ids, and each event as it was sent.
void check_stream(SQLite::Database& ledger, const std::map<int64_t, std::string>& events,
                  Findings& findings);
// The recorded events, told to a fresh core, give the decisions, windows, replays and directives
// on record, and the state that is written down.
void check_core(const std::string& ledger, const RunRecord& run, Findings& findings);

// What came to a receiver of notifications is all that it was to be told of this run, in the order
// on record, each message taken before the next one came. `late_copies`: the network may have kept
// a message that was sent again meanwhile.
void check_messages(SQLite::Database& ledger, const std::string& path, const RunRecord& run,
                    const Hook& hook, bool late_copies, Findings& findings);
void check_signatures(const Hook& hook, Findings& findings);

}  // namespace gnomon::robustness
