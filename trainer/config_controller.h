// Where [controller] of the trainer's configuration says that gnomond is, and how it is reached.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "protocol/client_options.h"
#include "protocol/toml_reader.h"

namespace gnomon {

// `url` stands for the command line's, if there is one. What the file leaves open is the
// environment's. Paths are relative to `folder`. The URL is empty for "none", and nothing is looked
// at then. Throws ConfigError.
ClientOptions read_controller_access(TomlTable& table, const std::optional<std::string>& url,
                                     const std::filesystem::path& folder);

// TomlTable::refuse_unknown_keys() of [controller] without values: people write a token where the
// name of its file belongs.
void refuse_unknown_controller_keys(const TomlTable& table);

}  // namespace gnomon
