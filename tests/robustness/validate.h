// Whether what is on record at the end of a history fits what its clients were told, and whether
// the decision core, told the recorded events again, comes to what is on record.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/robustness/record.h"

namespace gnomon::robustness {

// Of a ledger that no daemon has open. `events` are what a follower of the stream saw, by id. Each
// sentence is something that must not be.
std::vector<std::string> validate(const std::filesystem::path& ledger, const Record& record,
                                  const std::map<int64_t, std::string>& events);

// What the core decided in this run, without times: equal for equal events.
std::vector<std::string> decisions_of(const std::filesystem::path& ledger, int64_t run);

}  // namespace gnomon::robustness
