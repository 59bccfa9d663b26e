// The daemon's log on stderr: lines for people, logfmt, or a JSON object a line.
#pragma once

#include <spdlog/formatter.h>

#include <memory>
#include <string>

#include "controller/daemon/daemon_config.h"

namespace gnomon {

// `format` is text, logfmt or json. Of the last two each line has the members ts (RFC 3339, UTC),
// level and msg, whose text is escaped and cannot break the line.
std::unique_ptr<spdlog::formatter> make_log_formatter(const std::string& format);

// Makes the process's log. Once.
void start_log(const LogConfig& config);
void set_log_level(const std::string& level);

}  // namespace gnomon
