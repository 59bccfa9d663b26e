// Paths that an operator gives on the command line.
#pragma once

#include <string>
#include <string_view>

namespace gnomon::cli {

// Throws ConfigError when nothing is there, or a file, or a directory without a manifest: the user
// meant something else. Damage inside a checkpoint is for whoever reads it to tell.
void require_checkpoint(const char* option, const std::string& path);

// write_file_atomically, whose SystemErrors name `path` and not a temporary file beside it.
void write_output(const std::string& path, std::string_view content);

}  // namespace gnomon::cli
