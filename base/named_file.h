// Files that people name and that are read again while a program runs: configurations, policies,
// secrets, certificates.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

#include "base/errors.h"

namespace gnomon {

inline constexpr size_t kNamedFileBytesMax = 1 << 20;
// Larger for files of authorities: a system's bundle has some 200 KiB.
inline constexpr size_t kPemFileBytesMax = 4 << 20;

// What was named is no file of that kind or size: bad input, as a ConfigError is.
class UnfitFile : public Error {
 public:
  using Error::Error;
};

// Whole content of a regular file (links are followed) of at most `bytes_max`. Neither waits for
// anybody, as a pipe would, nor takes more memory than that. Throws UnfitFile that says what is
// there instead, SystemError.
std::string read_named_file(const std::filesystem::path& path,
                            size_t bytes_max = kNamedFileBytesMax);
// The same, or a pipe that somebody writes into: what a shell's <(command) is. It is waited for ten
// seconds at most. For programs that read it once.
std::string read_named_file_or_pipe(const std::filesystem::path& path,
                                    size_t bytes_max = kNamedFileBytesMax);

}  // namespace gnomon
