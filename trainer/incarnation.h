// Which process this is, among all that have trained the run: a text that is new with each start,
// and how long the process has run. By these the controller knows a trainer from another one of the
// same run, as one that was cut off while its job was queued again (docs/api.md).
#pragma once

#include <string>

namespace gnomon {

const std::string& process_incarnation();
double process_seconds();  // since the start of the process

// The target of a request with what it says of the process; unchanged where `incarnation` is empty.
std::string with_incarnation(const std::string& target, const std::string& incarnation);

}  // namespace gnomon
