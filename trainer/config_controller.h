// Where [controller] of the trainer's configuration says that gnomond is, and how it is reached.
#pragma once

#include <optional>
#include <string>

#include "protocol/client_options.h"
#include "trainer/config_file.h"

namespace gnomon {

// `url` stands for the command line's, if there is one. What the file, whose table this is, leaves
// open is the environment's. The URL is empty for "none", and nothing is looked at then. Throws
// ConfigError.
ClientOptions controller_access(const ControllerTable& controller,
                                const std::optional<std::string>& url, const TomlTable& table);

}  // namespace gnomon
