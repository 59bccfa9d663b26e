// What a measured window shows, in words and as the evidence of a decision.
#pragma once

#include <boost/json/object.hpp>
#include <string>

#include "controller/decide/gap_detector.h"
#include "controller/decide/state.h"

namespace gnomon::decide {

// The window has been measured; `verdict` is the detector's.
boost::json::object gap_evidence(const WindowState& window, const GapVerdict& verdict);

// The window has been measured and judged: its gap, and the rule that makes it an alarm.
std::string alarm_words(const WindowState& window);

}  // namespace gnomon::decide
