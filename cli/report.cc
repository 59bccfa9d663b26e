#include "cli/report.h"

#include <utility>

#include "base/errors.h"
#include "cli/report_assets.h"

namespace gnomon::cli {
namespace {

void replace_once(std::string& page, std::string_view mark, std::string_view content) {
  size_t at = page.find(mark);
  GNOMON_ASSERT(at != std::string::npos);
  page.replace(at, mark.size(), content);
}

// Text between tags.
std::string escape_html(std::string_view text) {
  std::string escaped;
  for (char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

// JSON inside <script>: no "</script>" and no "<!--" can come about without a '<'.
std::string escape_script(std::string_view json) {
  std::string escaped;
  for (char c : json) {
    if (c == '<') {
      escaped += "\\u003c";
    } else {
      escaped += c;
    }
  }
  return escaped;
}

}  // namespace

std::string report_html(const RunHistory& history, const RunSummary& summary) {
  std::string page(kAsset_page);
  std::string data = escape_script(report_data_json(history, summary));
  std::pair<std::string_view, std::string_view> scripts[] = {
      {"/*DYGRAPH_STYLE*/", kAsset_dygraph_style},
      {"/*STYLE*/", kAsset_style},
      {"/*DYGRAPH_SCRIPT*/", kAsset_dygraph_script},
      {"/*ELEMENTS*/", kAsset_elements},
      {"/*STEP_CHARTS*/", kAsset_step_charts},
      {"/*TIMELINE*/", kAsset_timeline},
      {"/*TABLES*/", kAsset_tables},
      {"/*NET_SPEEDUP*/", kAsset_net_speedup},
      {"/*SCRIPT*/", kAsset_script}};
  for (const auto& [mark, content] : scripts) replace_once(page, mark, content);
  replace_once(page, "@TITLE@", escape_html(summary.run));
  replace_once(page, "/*DATA*/", data);
  return page;
}

}  // namespace gnomon::cli
