// Libraries that a program opens when it first needs them, so that it starts, and does everything
// else, where they are not installed: those of the GPU's vendor and of its driver.
#pragma once

#include <string>
#include <vector>

#include "base/errors.h"

namespace gnomon {

// A library could not be opened, or has no such function. Says what it is for, what was tried, what
// the loader said, and what helps.
class MissingLibrary : public Error {
 public:
  using Error::Error;
};

class SharedLibrary {
 public:
  struct Names {
    std::string what;  // "cuBLASLt, which makes the GPU's matrix products"
    std::string file;  // "libcublasLt.so.13"
    // Tried in this order; "" stands for the places that the loader knows, which come first where
    // it is not among them.
    std::vector<std::string> folders = {};
    std::string advice = {};  // a sentence: where it comes from
  };
  // Opened for as long as the process lives. Throws MissingLibrary.
  explicit SharedLibrary(Names names);

  // The function called `name`, whose type is F. Throws MissingLibrary.
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(symbol(name));
  }
  const std::string& file() const { return names_.file; }

 private:
  void* symbol(const char* name) const;

  Names names_;
  void* handle_ = nullptr;
};

}  // namespace gnomon

// The function `name` of `library` (an expression that gives a SharedLibrary), as its header
// declares it; looked for once.
#define GNOMON_FROM_LIBRARY(library, name)                    \
  ([]() -> decltype(&::name) {                                \
    static decltype(::name)* const gnomon_found =             \
        (library).template function<decltype(::name)>(#name); \
    return gnomon_found;                                      \
  }())
