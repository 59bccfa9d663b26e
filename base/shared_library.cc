#include "base/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace gnomon {
namespace {

std::string loader_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "the loader does not say why" : text;
}

}  // namespace

SharedLibrary::SharedLibrary(Names names) : names_(std::move(names)) {
  std::vector<std::string> tried;
  const auto open = [&](const std::string& path) {
    handle_ = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) tried.push_back(loader_error());
  };
  if (std::ranges::find(names_.folders, "") == names_.folders.end()) open(names_.file);
  for (const std::string& folder : names_.folders) {
    if (handle_ == nullptr) open(folder.empty() ? names_.file : folder + "/" + names_.file);
  }
  if (handle_ != nullptr) return;
  throw MissingLibrary(fmt::format("{} is not there: {} cannot be opened ({}). {}", names_.what,
                                   names_.file, fmt::join(tried, "; "), names_.advice));
}

void* SharedLibrary::symbol(const char* name) const {
  ::dlerror();
  void* found = ::dlsym(handle_, name);
  if (found != nullptr) return found;
  throw MissingLibrary(fmt::format("{}: {} has no function {} ({}). {}", names_.what, names_.file,
                                   name, loader_error(), names_.advice));
}

}  // namespace gnomon
