// Numbers with what they count: "1 step", "3 steps".
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace gnomon {

// `what` is one of them, and takes an s.
inline std::string counted(int64_t number, std::string_view what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

}  // namespace gnomon
