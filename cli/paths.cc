#include "cli/paths.h"

#include <filesystem>

#include "base/errors.h"
#include "base/files.h"

namespace gnomon::cli {

void require_checkpoint(const char* option, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_regular_file(std::filesystem::path(path) / "manifest.json", error))
    return;
  throw ConfigError("", 0, option, path,
                    "a checkpoint directory (with a manifest.json), as `gnomon checkpoint list` "
                    "shows them");
}

void write_output(const std::string& path, std::string_view content) {
  try {
    write_file_atomically(path, content);
  } catch (const SystemError& error) {
    throw SystemError("write", path, error.error_number());
  }
}

}  // namespace gnomon::cli
