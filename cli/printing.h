// Lines for people, of text that others may have written.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/printable.h"

namespace gnomon::cli {

// What becomes of an argument of print_line: text is made printable, the rest stays as it is.
template <typename T>
using Shown = std::conditional_t<std::is_convertible_v<const T&, std::string_view>, std::string, T>;

template <typename T>
Shown<T> shown(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return printable(value);
  } else {
    return value;
  }
}

// fmt::print with printable() over every argument that is text.
template <typename... T>
void print_line(fmt::format_string<Shown<T>...> format, const T&... arguments) {
  fmt::print(format, shown(arguments)...);
}
template <typename... T>
void print_line(std::FILE* out, fmt::format_string<Shown<T>...> format, const T&... arguments) {
  fmt::print(out, format, shown(arguments)...);
}

}  // namespace gnomon::cli
