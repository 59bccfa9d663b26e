// Checks whether what is on record at the end of a history fits what its clients were told, and
// whether the decision core, told the recorded events again, comes to what is on record.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/robustness/hook.h"
#include "tests/robustness/record.h"

namespace gnomon::robustness {

// What others than the clients saw.
struct Seen {
  const std::map<int64_t, std::string>& events;  // by a follower of the stream, by id
  const std::vector<std::unique_ptr<Hook>>& hooks;
  bool late_copies = false;  // of messages to them, as for check_messages
};

// Checks a ledger that no daemon has open. Each sentence is something that must not be.
std::vector<std::string> validate(const std::filesystem::path& ledger, const Record& record,
                                  const Seen& seen);

// What the core decided in this run, without times: equal for equal events.
std::vector<std::string> decisions_of(const std::filesystem::path& ledger, int64_t run);

}  // namespace gnomon::robustness
