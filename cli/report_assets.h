// The files that a report is put together from, embedded at build time.
#pragma once

#include <string_view>

namespace gnomon::cli {

extern const std::string_view kAsset_page;
extern const std::string_view kAsset_script;
extern const std::string_view kAsset_style;
extern const std::string_view kAsset_elements;
extern const std::string_view kAsset_step_charts;
extern const std::string_view kAsset_timeline;
extern const std::string_view kAsset_tables;
extern const std::string_view kAsset_net_speedup;
extern const std::string_view kAsset_dygraph_script;
extern const std::string_view kAsset_dygraph_style;

}  // namespace gnomon::cli
