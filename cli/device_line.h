// The health of a run's GPU in one line for people.
#pragma once

#include <boost/json.hpp>
#include <string>

namespace gnomon::cli {

// `row` of the ledger's device_health; `now` in seconds since the epoch. What the device does not
// say is left out.
std::string device_line(const boost::json::object& row, double now);

}  // namespace gnomon::cli
