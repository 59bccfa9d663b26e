// A run as one self-contained HTML file: no request leaves it, data and scripts are inside.
#pragma once

#include <string>

#include "cli/ledger_view.h"
#include "cli/summary.h"

namespace gnomon::cli {

// The page. Curves of more than kReportPointsMax steps per attempt are thinned evenly, keeping the
// extremes.
std::string report_html(const RunHistory& history, const RunSummary& summary);

inline constexpr int kReportPointsMax = 4000;

// What the page's script gets, as JSON (exposed for tests).
std::string report_data_json(const RunHistory& history, const RunSummary& summary);

}  // namespace gnomon::cli
